"""Differential privacy of clients, and its accounting."""

from fl_lightning.parts.privacy.accounting import Mechanism, check_installed, epsilon_of, noise_for
from fl_lightning.parts.privacy.client_level import DifferentialPrivacy, check_open_share

__all__ = ["DifferentialPrivacy", "Mechanism", "check_installed", "check_open_share", "epsilon_of", "noise_for"]
