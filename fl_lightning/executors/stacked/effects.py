"""What a training step does beside computing: a stack would do it once for all of its clients."""

from __future__ import annotations

import builtins
import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any
from unittest.mock import patch

import torch

from fl_lightning.executors.base import CannotVectorize

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "torchmetrics", "fl_lightning")


@contextmanager
def no_effects() -> Iterator[None]:
    """Raise ``CannotVectorize`` for what is printed, logged by Python's ``logging``, or written to a file.

    Environment variables are put back.
    """
    with ExitStack() as effects:
        effects.enter_context(patch.dict(os.environ))
        effects.enter_context(redirect_stdout(_NoPrinting()))
        for place in (builtins, io):
            effects.enter_context(patch.object(place, "open", _reading_only(open)))
        effects.enter_context(patch.object(torch, "save", _no_saving))
        effects.enter_context(patch.object(logging.Logger, "handle", _of_libraries_only(logging.Logger.handle)))
        yield


class _NoPrinting(io.TextIOBase):
    def write(self, text: str) -> int:
        raise CannotVectorize("`training_step` prints, which a stack would do once for all clients")


def _reading_only(stock: Callable[..., Any]) -> Callable[..., Any]:
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            raise CannotVectorize("`training_step` writes to a file, which a stack would do once for all clients")
        return stock(file, mode, *args, **kwargs)

    return opened


def _no_saving(*args: Any, **kwargs: Any) -> None:
    raise CannotVectorize("`training_step` writes to a file, which a stack would do once for all clients")


def _of_libraries_only(stock: Callable[..., Any]) -> Callable[..., Any]:
    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if logger.name.split(".")[0] not in _LIBRARIES:
            raise CannotVectorize("`training_step` logs by `logging`, which a stack would do once for all clients")
        stock(logger, record)

    return handle
