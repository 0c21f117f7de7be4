"""Checks of a user's own part or algorithm."""

from fl_lightning.testing.check_part import Check, PartCheckError, PartReport, check_part

__all__ = ["Check", "PartCheckError", "PartReport", "check_part"]
