"""A parser of options that build classes, with the help and the errors of all programs of the package."""

from __future__ import annotations

from typing import Any, NoReturn

import jsonargparse

from fl_lightning.command_line import KeepsExamples, did_you_mean


class _HelpFormatter(KeepsExamples, jsonargparse.DefaultHelpFormatter):
    """Keeps examples as lines, and shows defaults."""


class OptionParser(jsonargparse.ArgumentParser):
    """jsonargparse's parser with a usage of one line, which keeps examples as lines and names what a typo meant.

    Args:
        options: The arguments of ``jsonargparse.ArgumentParser``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, "usage": "%(prog)s [options]", **options})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End the program with the message."""
        super().error(message + did_you_mean(message, self._option_string_actions), ex)
