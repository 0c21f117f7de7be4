"""The command ``fl-lightning``."""

from fl_lightning.command.commands import main

__all__ = ["main"]
