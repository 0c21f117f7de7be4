"""Globals, closures, classes and modules that code of the user's own can reach."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LIBRARIES = ("torch", "lightning", "torchmetrics", "pytorch_lightning", "fl_lightning", "builtins")
_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
_DYNAMIC = {"getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "eval", "exec"}


def surroundings(kind: type) -> dict[str, Any]:
    """Return what a class and its bases outside of libraries hold, and what their methods see, by name."""
    found: dict[str, Any] = {}
    metaclass: Any = type(kind)
    for base in (*kind.__mro__, *metaclass.__mro__):
        if str(base.__module__).split(".")[0] in _LIBRARIES:
            continue
        for key, member in vars(base).items():
            if key == "__slotnames__":  # which Python sets when it looks how an object is copied
                continue
            if not isinstance(member, FunctionType):
                found.setdefault(f"{base.__name__}.{key}", member)
                continue
            found.update(globals_of(member.__code__, member.__globals__))
            found.update(held_by(member))
    return found


def globals_of(code: CodeType, present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals that a function's code names, and what it may name of modules of the user's own."""
    names, own = _names(code), _global_names(code)
    found = {name: present[name] for name in (present if "globals" in own else own) if name in present}
    # what is imported inside of the function is no global
    waiting = [*found.items(), *((name, sys.modules[name]) for name in names if name in sys.modules)]
    seen: set[int] = set()
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, ModuleType) and id(value) not in seen and is_users(value.__name__):
            seen.add(id(value))
            inner = [(f"{path}.{key}", vars(value)[key]) for key in names if key in vars(value)]
            found.update(inner)
            waiting += inner
    return found


def names_reached(method: Any) -> set[str] | None:
    """Return the names that a method uses, and functions and methods of the user's own that it can call.

    Returns:
        The names; ``None`` if the method looks attributes up by names that its code does not tell.
    """
    owner, waiting = type(getattr(method, "__self__", None)), [getattr(method, "__func__", method)]
    names: set[str] = set()
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(value, type) and is_users(value.__module__):
            waiting += [
                member for base in value.__mro__ for member in vars(base).values() if not isinstance(member, type)
            ]
        if not isinstance(value, FunctionType) or id(value) in seen or not is_users(value.__module__):
            continue
        seen.add(id(value))
        new = set(_names(value.__code__))
        names |= new
        waiting += [*globals_of(value.__code__, value.__globals__).values(), *held_by(value).values()]
        waiting += [member for name in new if (member := inspect.getattr_static(owner, name, None)) is not None]
    return None if names & _DYNAMIC else names


@functools.cache
def _names(code: CodeType) -> tuple[str, ...]:
    """Return what a function's code names, with that of the functions and classes inside of it."""
    inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const))
    return tuple(dict.fromkeys([*code.co_names, *inner]))


@functools.cache
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return those of these names that are globals, not attributes, which may have the same names."""
    own = [step.argval for step in dis.get_instructions(code) if step.opname in _OF_GLOBALS]
    inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in _global_names(const))
    return tuple(dict.fromkeys([*own, *inner]))


def held_by(function: FunctionType) -> dict[str, Any]:
    """Return what a function holds: the variables of its closure, its arguments' defaults, and its attributes."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            held[name] = cell.cell_contents
    defaults = {f"{function.__name__}'s default {n}": value for n, value in enumerate(function.__defaults__ or ())}
    return {**held, **defaults, **(function.__kwdefaults__ or {}), **vars(function)}


@functools.cache
def is_users(module: Any) -> bool:
    """Whether a module is neither Python's nor an installed package's, by the ``__module__`` of what it defines."""
    if not isinstance(module, str) or module.startswith("_cython_"):  # of the functions of packages made with Cython
        return False
    package = module.split(".")[0]
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return not installed and package not in _LIBRARIES and package not in sys.stdlib_module_names
