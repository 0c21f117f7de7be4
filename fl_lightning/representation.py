"""Texts that are in :mod:`fl_lightning.checks`."""

from fl_lightning.checks import *  # noqa: F403
