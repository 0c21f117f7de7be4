"""Trying a module out without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torchmetrics import Metric


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Put torch's generators back at the end."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def preserved_attributes(module: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Yield a function that names what has changed since; put everything back at the end.

    Watched are the attributes of the module and its submodules, and the lists, dictionaries and sets that they, the
    closures of their methods or the globals that these name lead to.

    Args:
        module: The module.
    """
    before = [(name, submodule, dict(vars(submodule))) for name, submodule in module.named_modules()]
    contents: dict[int, tuple[str, Any, Any]] = {}
    for name, submodule, held in before:
        prefix = f"self.{name}." if name else "self."
        named = {prefix + key: value for key, value in held.items() if key not in _SKIPPED}
        for key, value in {**named, **surroundings(type(submodule))}.items():
            _note(key, value, contents)

    def changes() -> str | None:
        for name, submodule, held in before:
            for key, value in vars(submodule).items():
                if key not in _SKIPPED and held.get(key) is not value:
                    kind = "the metric " if isinstance(submodule, Metric) else ""
                    return f"{kind}`self.{name + '.' if name else ''}{key}`"
        return next((f"`{name}`" for name, value, copy in contents.values() if not _same(value, copy)), None)

    try:
        yield changes
    finally:
        for _, value, copy in contents.values():
            if not _same(value, copy):
                value.clear()
                value.extend(copy) if isinstance(value, list) else value.update(copy)
        for _, submodule, held in before:
            attributes = vars(submodule)
            for key in [key for key in attributes if key not in held]:
                del attributes[key]
            attributes.update(held)


_SKIPPED = {"_current_fx_name", "log", "_parameters", "_buffers", "_modules", "_trainer", "trainer"}
_DEPTH = 3
_LIBRARIES = ("torch", "lightning", "torchmetrics", "pytorch_lightning", "builtins")


def surroundings(kind: type) -> dict[str, Any]:
    """Return what the methods of a class, and of its bases outside of libraries, see beside ``self``, by name."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in _LIBRARIES:
            continue
        for key, member in vars(base).items():
            if not isinstance(member, FunctionType):
                found.setdefault(key, member)
                continue
            code = member.__code__
            for name, cell in zip(code.co_freevars, member.__closure__ or (), strict=True):
                with suppress(ValueError):  # a cell that is still empty
                    found.setdefault(name, cell.cell_contents)
            found.update({name: member.__globals__[name] for name in code.co_names if name in member.__globals__})
    return found


def _note(name: str, value: Any, contents: dict[int, tuple[str, Any, Any]], depth: int = 0) -> None:
    """Note the contents of a container and of those in it."""
    if type(value) not in (list, dict, set) or id(value) in contents or depth > _DEPTH:
        return
    contents[id(value)] = name, value, value.copy()
    for inner in value.values() if isinstance(value, dict) else value:
        _note(name, inner, contents, depth + 1)


def _same(value: Any, copy: Any) -> bool:
    if len(value) != len(copy):
        return False
    if isinstance(value, dict):
        return all(key in value and value[key] is held for key, held in copy.items())
    return value == copy if isinstance(value, set) else all(a is b for a, b in zip(value, copy, strict=True))
