"""Attacks by clients, for studies of robustness."""

from fl_lightning.parts.attacks.base import Attack, Collusion, LocalAttack
from fl_lightning.parts.attacks.collusion import ALittleIsEnough, InnerProductManipulation, Mimic
from fl_lightning.parts.attacks.single import GaussianAttack, SignFlipping

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "Collusion",
    "GaussianAttack",
    "InnerProductManipulation",
    "LocalAttack",
    "Mimic",
    "SignFlipping",
]
