"""Privacy: noise on sums of updates or on each update, secure sums, and what they spend."""

from fl_lightning.parts.privacy.accounting import check_installed, check_nothing_spent, epsilon_of_clients
from fl_lightning.parts.privacy.client_level import DifferentialPrivacy
from fl_lightning.parts.privacy.local import LocalDifferentialPrivacy
from fl_lightning.parts.privacy.secure import SecureAggregation

__all__ = [
    "DifferentialPrivacy",
    "LocalDifferentialPrivacy",
    "SecureAggregation",
    "check_installed",
    "check_nothing_spent",
    "epsilon_of_clients",
]
