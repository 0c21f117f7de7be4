"""Side effects of a training step: a stack would have them once for all of its clients."""

from __future__ import annotations

import decimal
import functools
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NoReturn
from unittest.mock import patch

import torch

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning.executors.stacked.guards.trackers import unused_trackers
from fl_lightning.executors.stacked.surroundings import is_users

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "torchmetrics", "fl_lightning")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND  # flags of opened files
#: What Python's audit events, of which most functions of the operating system have one, say that a step does.
_EVENTS = {
    **dict.fromkeys(("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"), "changes files"),
    **dict.fromkeys(("os.link", "os.symlink", "os.utime", "os.chmod"), "changes files"),
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), "uses the network"),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "os.exec"), "starts a process"),
    "sqlite3.connect": "opens a database",
    "open": "writes to a file",
}
_watching = threading.local()  # `refuse`: called with what this thread does, where that is not allowed


class SideEffect(CannotVectorize):
    """A step has side effects, however it runs."""


@contextmanager
def no_effects() -> Iterator[None]:
    """Raise ``CannotVectorize`` for what is printed, logged by Python's ``logging``, or written to files.

    Also for environment variables, ``sys.modules`` and the context of ``decimal`` that are changed, databases, the
    network, processes that are started, loggers of Lightning's kind, and packages that track experiments. Only for what
    this thread does: loggers and checkpoints may be written by others meanwhile. Warnings are left out: the step has
    been taken normally before.
    """
    mine = threading.get_ident()

    def stop(what: str) -> NoReturn:
        raise SideEffect(f"`training_step` {what}, which a stack would do once for all clients")

    def refuse(what: str, allowed: Callable[..., bool], stock: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == mine and not allowed(*args, **kwargs):
                stop(what)
            return stock(*args, **kwargs)

        return called

    _listen()
    with ExitStack() as effects:
        effects.enter_context(_same_settings())
        effects.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            write = refuse("prints", lambda text: not text, stream.write)
            effects.enter_context(redirect(_Stream(stream, write)))
        effects.enter_context(patch.object(_watching, "refuse", stop, create=True))
        effects.enter_context(patch.object(torch, "save", refuse("writes to a file", _never, torch.save)))
        handle = refuse("logs by `logging`", _is_of_library, logging.Logger.handle)
        effects.enter_context(patch.object(logging.Logger, "handle", handle))
        effects.enter_context(unused_trackers(stop))
        yield


@functools.cache
def _listen() -> None:
    """Hear of files, processes and the network; a hook cannot be taken back, and does nothing outside of a watch."""
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...], events: dict[str, str] = _EVENTS) -> None:
    # an argument holds the events: when Python ends, a module's names are None, and the hook is called even so
    if event not in events:  # most events are others: each call of `id` makes one
        return
    refuse = getattr(_watching, "refuse", None)
    if refuse is not None and (event != "open" or arguments[2] & _WRITING):
        refuse(events[event])


@contextmanager
def _same_settings() -> Iterator[None]:
    """Raise ``CannotVectorize`` for settings of the whole process that are changed, and take the changes back."""
    environment, modules, context = os.environ.copy(), sys.modules.copy(), decimal.getcontext().copy()
    try:
        yield
    finally:
        changed = []
        if os.environ.copy() != environment:
            changed.append("sets environment variables")
            os.environ.clear()
            os.environ.update(environment)
        if names := _changed_modules(modules):
            changed.append("changes `sys.modules`")
            for name in names:
                sys.modules.pop(name, None)
            sys.modules.update((name, modules[name]) for name in names if name in modules)
        if repr(decimal.getcontext()) != repr(context):
            changed.append("changes the context of `decimal`")
            decimal.setcontext(context)
    if changed:
        raise CannotVectorize(f"`training_step` {changed[0]}, which a stack would do once for all clients")


def _changed_modules(before: dict[str, Any]) -> list[str]:
    """Return the names of modules of the user's own that came, went or were replaced; libraries import when needed."""
    now = sys.modules.copy()
    changed = [name for name in {**before, **now} if now.get(name) is not before.get(name)]
    return [name for name in changed if is_users(name)]


class _Stream:
    """A stream whose ``write`` is another one."""

    def __init__(self, stream: Any, write: Callable[..., Any]) -> None:
        self._stream, self.write = stream, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _never(*args: Any, **kwargs: Any) -> bool:
    return False


def _is_of_library(logger: logging.Logger, record: logging.LogRecord) -> bool:
    """Whether a library's own code logs, and not a function of it such as ``rank_zero_info`` for its caller."""
    return record.pathname.startswith(library_folders())


@functools.cache
def library_folders() -> tuple[str, ...]:
    """Return the folders of this library and of those that it runs on."""
    found = map(importlib.util.find_spec, _LIBRARIES)
    return tuple(folder + os.sep for spec in found if spec for folder in spec.submodule_search_locations or ())
