"""Loggers and packages that track experiments: what a training step tells them is a side effect."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import patch

from lightning.fabric.loggers.logger import Logger

#: What a logger tells about itself.
_QUESTIONS = ("name", "version", "save_dir", "root_dir", "log_dir", "group_separator")
_PACKAGES = (
    "wandb",
    "mlflow",
    "tensorboardX",
    "comet_ml",
    "neptune",
    "clearml",
    "aim",
    "swanlab",
    "trackio",
    "dvclive",
)
_WRITER = "torch.utils.tensorboard"


@contextmanager
def unused_trackers(stop: Callable[[str], NoReturn]) -> Iterator[None]:
    """Watch this thread's use of Lightning's loggers of any kind, and of packages that track experiments.

    Args:
        stop: Called with what is done.
    """
    mine = threading.get_ident()

    def attribute(logger: Any, name: str) -> Any:
        if not name.startswith("_") and name not in _QUESTIONS and threading.get_ident() == mine:
            stop("calls a logger")
        return object.__getattribute__(logger, name)

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_globals.get("__name__")
        if event == "call" and isinstance(name, str) and _tracks(name):
            stop(f"calls {name.split('.')[0] if not name.startswith(_WRITER) else _WRITER}")

    # it sees every way to call a function, and is slow: for those alone who have such a package
    listens = sys.getprofile() is None and any(name in sys.modules for name in (*_PACKAGES, _WRITER))
    with patch.object(Logger, "__getattribute__", attribute):
        if listens:
            sys.setprofile(on_call)
        try:
            yield
        finally:
            if listens:
                sys.setprofile(None)


def _tracks(module: str) -> bool:
    return module.split(".")[0] in _PACKAGES or module.startswith(_WRITER)
