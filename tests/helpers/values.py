"""A message must not show ``None`` in place of a value, and a text has the same bytes on all systems."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

from _pytest.raises import RaisesExc
from _pytest.recwarn import WarningsChecker

#: ``None``, but for that of an argument in a repr, and for what a sentence says of arguments.
_NO_VALUE = re.compile(r"(?<!=)(?<!\bis )(?<!\bor )\bNone\b(?! for all)")
_PACKAGE = f"{Path(__file__).parents[2] / 'fl_lightning'}{os.sep}"


def assert_values(message: str, expected: object = "") -> None:
    """Raise ``AssertionError`` if a message shows ``None``, unless the test gives it or expects it."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    assert not _NO_VALUE.search(message) or "None" in f"{expected} {test}", f"a value is missing: {message}"


def check_expected_messages() -> None:
    """Let ``pytest.raises`` and ``pytest.warns`` look for values that are missing in the messages that they expect."""
    leave_raises = RaisesExc.__exit__
    leave_warns = WarningsChecker.__exit__

    def after_error(block: Any, kind: Any, error: Any, traceback: Any) -> bool:
        is_expected = leave_raises(block, kind, error, traceback)
        if is_expected:
            assert_values(str(error), block.match)
        return is_expected

    def after_warnings(block: Any, *error: Any) -> None:
        expected = [str(each.message) for each in block.list if block.matches(each)]
        leave_warns(block, *error)
        assert_values("\n".join(expected), block.match_expr)

    RaisesExc.__exit__ = after_error  # type: ignore[method-assign]
    WarningsChecker.__exit__ = after_warnings  # type: ignore[method-assign]


def check_encodings() -> None:
    """Let the package open no text without an encoding, which would be another one on another system."""
    choose = io.text_encoding

    def text_encoding(encoding: Any, stacklevel: int = 2) -> str:
        # The frame before this one is that of a method of ``Path``.
        caller = sys._getframe(2).f_code.co_filename
        assert encoding is not None or not caller.startswith(_PACKAGE), f"{caller} opens a text without an encoding"
        return choose(encoding, stacklevel)

    io.text_encoding = text_encoding  # type: ignore[assignment]
