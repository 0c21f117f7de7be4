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
_CACHED: Any = type(functools.cache(abs))
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
            own = {f"{base.__name__}.{key}": member}
            if isinstance(member, FunctionType):
                own = seen_by(member)
            add_named(found, own, f"{base.__module__}.{base.__qualname__}.{key}")
    return found


def add_named(found: dict[str, Any], others: Mapping[str, Any], of: str) -> None:
    """Add values to others; where another value has the name, under a longer one.

    Two functions have globals of one name if they are of two files, and variables of one name in their closures if one
    decorator has wrapped both.

    Args:
        found: The values by name, to be added to.
        others: The further values.
        of: What sees them, for the longer names.
    """
    for name, value in others.items():
        free = name
        while free in found and found[free] is not value:
            free = f"{free} of {of}"
        found[free] = value


def name_in_code(name: str) -> str:
    """Return the name by which code reaches a value, without a longer name's owners."""
    return name.partition(" of ")[0].rpartition(".")[2]


def seen_by(function: FunctionType) -> dict[str, Any]:
    """Return the globals that a function's code names, and what the function holds."""
    found = globals_of(function.__code__, function.__globals__)
    add_named(found, held_by(function), function.__qualname__)
    return found


def globals_of(code: CodeType, present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals that a function's code names, and what it may name of modules of the user's own.

    Of functions with a cache there are its counters, too, if the code names ``cache_info``.
    """
    names, own = names_in(code), _global_names(code)
    found = {name: present[name] for name in (present if "globals" in own else own) if name in present}
    # what is imported inside of the function is no global
    waiting = [*found.items(), *((name, sys.modules[name]) for name in names if name in sys.modules)]
    seen: set[int] = set()
    while waiting:
        path, value = waiting.pop()
        # not `isinstance`, which asks the value: a proxy of nothing raises
        if issubclass(type(value), ModuleType) and id(value) not in seen and is_users(value.__name__):
            seen.add(id(value))
            inner = [(f"{path}.{key}", vars(value)[key]) for key in names if key in vars(value)]
            found.update(inner)
            waiting += inner
    if "cache_info" in names:  # only then does it matter how often a cache was asked
        found |= {f"{name}.cache_info()": value.cache_info() for name, value in found.items() if type(value) is _CACHED}
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
        kind = type(value)
        value = value.fget if kind is property else value.__func__ if hasattr(kind, "__func__") else value
        if issubclass(type(value), type) and is_users(value.__module__):
            waiting += [
                member for base in value.__mro__ for member in vars(base).values() if not isinstance(member, type)
            ]
        if type(value) is not FunctionType or id(value) in seen or not is_users(value.__module__):
            continue
        seen.add(id(value))
        new = set(names_in(value.__code__))
        names |= new
        waiting += [*globals_of(value.__code__, value.__globals__).values(), *held_by(value).values()]
        waiting += [member for name in new if (member := inspect.getattr_static(owner, name, None)) is not None]
    return None if names & _DYNAMIC else names


@functools.cache
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return what a function's code names, with that of the functions and classes inside of it."""
    inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in names_in(const))
    return tuple(dict.fromkeys([*code.co_names, *code.co_freevars, *inner]))


@functools.cache
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return those of these names that are globals, not attributes, which may have the same names."""
    own = [step.argval for step in dis.get_instructions(code) if step.opname in _OF_GLOBALS]
    inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in _global_names(const))
    return tuple(dict.fromkeys([*own, *inner]))


def held_by(function: FunctionType) -> dict[str, Any]:
    """Return what a function holds: the variables of its closure, its arguments' defaults, and its attributes."""
    name = function.__name__
    held = {f"{name}.{key}": value for key, value in vars(function).items()}
    defaults: dict[Any, Any] = {**dict(enumerate(function.__defaults__ or ())), **(function.__kwdefaults__ or {})}
    held |= {f"{name}'s default {key}": value for key, value in defaults.items()}
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            held[variable] = cell.cell_contents
    return held


@functools.cache
def is_users(module: Any) -> bool:
    """Whether a module is neither Python's nor an installed package's, by the ``__module__`` of what it defines."""
    if not isinstance(module, str) or module.startswith("_cython_"):  # of the functions of packages made with Cython
        return False
    package = module.split(".")[0]
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return not installed and package not in _LIBRARIES and package not in sys.stdlib_module_names
