"""Differential privacy of clients, and its accounting."""

from fl_lightning.parts.privacy.accounting import (
    Ledger,
    Mechanism,
    check_installed,
    epsilon_of,
    noise_for,
    refuse_another_fit,
)
from fl_lightning.parts.privacy.client_level import DifferentialPrivacy
from fl_lightning.parts.privacy.local import LocalDifferentialPrivacy

__all__ = [
    "DifferentialPrivacy",
    "Ledger",
    "LocalDifferentialPrivacy",
    "Mechanism",
    "check_installed",
    "epsilon_of",
    "noise_for",
    "refuse_another_fit",
]
