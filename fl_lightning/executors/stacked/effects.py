"""Side effects of a training step: a stack would have them once for all of its clients."""

from __future__ import annotations

import builtins
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch

from fl_lightning.executors.base import CannotVectorize

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "torchmetrics", "fl_lightning")


@contextmanager
def no_effects() -> Iterator[None]:
    """Raise ``CannotVectorize`` for what is printed, logged by Python's ``logging``, or written to a file.

    Also for environment variables that are set. Only for what this thread does: loggers and checkpoints may be written
    by others meanwhile. Warnings are left out: the step has been taken in earnest before.
    """
    mine = threading.get_ident()

    def refuse(what: str, allowed: Callable[..., bool], stock: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == mine and not allowed(*args, **kwargs):
                raise CannotVectorize(f"`training_step` {what}, which a stack would do once for all clients")
            return stock(*args, **kwargs)

        return called

    with ExitStack() as effects:
        effects.enter_context(_same_environment())
        effects.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            write = refuse("prints", lambda text: not text, stream.write)
            effects.enter_context(redirect(_Stream(stream, write)))  # type: ignore[type-var, operator]
        for place in (builtins, io):
            effects.enter_context(patch.object(place, "open", refuse("writes to a file", _reads, open)))
        effects.enter_context(patch.object(torch, "save", refuse("writes to a file", _never, torch.save)))
        handle = refuse("logs by `logging`", _is_of_library, logging.Logger.handle)
        effects.enter_context(patch.object(logging.Logger, "handle", handle))
        yield


@contextmanager
def _same_environment() -> Iterator[None]:
    before = os.environ.copy()
    try:
        yield
    finally:
        if changed := os.environ.copy() != before:
            os.environ.clear()
            os.environ.update(before)
    if changed:
        raise CannotVectorize("`training_step` sets environment variables, which a stack would do once for all clients")


class _Stream:
    """A stream whose ``write`` is another one."""

    def __init__(self, stream: Any, write: Callable[..., Any]) -> None:
        self._stream, self.write = stream, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _reads(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> bool:
    return not set(mode) & set("wax+")


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def _is_of_library(logger: logging.Logger, record: logging.LogRecord) -> bool:
    return logger.name.split(".")[0] in _LIBRARIES and not logger.name.endswith("rank_zero")  # `rank_zero_info`
