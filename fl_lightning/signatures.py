"""Signatures: the arguments of a class's constructor with those of its bases, and objects shown by them.

A constructor may hand ``**options`` on to its base class. Its full signature names what they may be:

>>> class Loader:
...     def __init__(self, batch_size: int = 10): ...
>>> class Images(Loader):
...     def __init__(self, root: str, **options): ...
>>> print(full_signature(Images))
(root: str, *, batch_size: int = 10)
"""

import inspect
import reprlib
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, ClassVar

import numpy as np

from fl_lightning.words import short_repr


def is_user_defined(cls: type) -> bool:
    """Return whether a class does not come with the library."""
    package = cls.__module__.partition(".")[0]
    return package != "fl_lightning"


class FullSignature:
    """A class attribute ``__signature__`` that shows all arguments; see :func:`full_signature`."""

    def __get__(self, instance: object, cls: type) -> Signature:
        if instance is not None:
            raise AttributeError
        return full_signature(cls)


class ShowsArguments:
    """Shows an object by its class and the constructor arguments that differ from their defaults.

    Attributes:
        shown_always: Arguments that are shown even if they have their default values, such as a seed.
        stored_as: The attribute of an argument whose own name is that of a property.
    """

    shown_always: ClassVar[tuple[str, ...]] = ()
    stored_as: ClassVar[Mapping[str, str]] = {}
    __signature__ = FullSignature()

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return represent(self, always=self.shown_always)


def full_signature(cls: type) -> Signature:
    """Return the arguments of a class's constructor and those that ``**options`` hands on to its base classes.

    Arguments of base classes that a class sets itself, and names in ``not_taken``, are left out.
    """
    not_taken = getattr(cls, "not_taken", ())
    found: dict[str, Parameter] = {}
    is_first = True
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        hands_on = False
        for parameter in parameters:
            if parameter.kind is Parameter.VAR_KEYWORD:
                hands_on = True
            elif parameter.name not in not_taken and parameter.name not in found:
                found[parameter.name] = parameter if is_first else parameter.replace(kind=Parameter.KEYWORD_ONLY)
        if not hands_on:
            break
        is_first = False
    return Signature(list(found.values()))


def arguments(instance: object) -> dict[str, Any]:
    """Return the values of an object's constructor arguments by name, if attributes of these names have them."""
    stored_as = getattr(type(instance), "stored_as", {})
    values = {}
    for name in full_signature(type(instance)).parameters:
        attribute = stored_as.get(name, name)
        if hasattr(instance, attribute):
            values[name] = getattr(instance, attribute)
    return values


def represent(instance: object, *facts: str, always: Sequence[str] = (), leave_out: Sequence[str] = ()) -> str:
    """Return the class and the constructor arguments of an object that differ from their defaults, in one line.

    Args:
        instance: The object; the value of an argument is the attribute of the same name.
        *facts: Strings that come first, such as ``"3 clients"``.
        always: Arguments that are shown even if they have their default values.
        leave_out: Arguments that are not shown.

    Returns:
        For example ``DirichletPartitioner(num_clients=100, alpha=0.3, seed=0)``.
    """
    cls = type(instance)
    parameters = full_signature(cls).parameters
    shown = list(facts)
    for name, value in arguments(instance).items():
        if name in leave_out:
            continue
        if parameters[name].kind is Parameter.VAR_POSITIONAL:
            shown.extend(short_repr(item) for item in value)
        elif name in always or not _is_default(value, parameters[name].default):
            shown.append(f"{name}={short_repr(value)}")
    return f"{cls.__name__}({', '.join(shown)})"


def _is_default(value: object, default: object) -> bool:
    if value is default:
        return True
    if default is Parameter.empty:
        return False
    # For Python, True equals 1; a reader sees a difference.
    if isinstance(value, bool) != isinstance(default, bool):
        return False
    # An array compares element by element.
    if isinstance(value, np.ndarray):
        return False
    return bool(value == default)
