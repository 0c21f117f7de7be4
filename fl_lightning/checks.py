"""Settings: limits in their types, checked by one function; signatures, strings; what a user's part may return."""

import inspect
import math
import numbers
import os
import reprlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

Positive = Annotated[float, "(0, inf)"]
NotNegative = Annotated[float, "[0, inf)"]
Finite = Annotated[float, "(-inf, inf)"]
Fraction = Annotated[float, "[0, 1)"]
Share = Annotated[float, "(0, 1]"]
Probability = Annotated[float, "(0, 1)"]
Count = Annotated[int, "[1, inf)"]
Natural = Annotated[int, "[0, inf)"]
Seed = Annotated[int, "[0, 4294967296)"]  # as Lightning's `seed_everything` takes it
PathLike = str | os.PathLike[str]
#: How a module takes the weights of a checkpoint alone.
LOAD_WEIGHTS = '`module.load_state_dict(torch.load(path)["state_dict"])`'
#: A setting that may be a function of the round.
Scheduled = Positive | Callable[[int], float]
ScheduledFraction = Fraction | Callable[[int], float]
ScheduledShare = Share | Callable[[int], float]
ScheduledWeight = NotNegative | Callable[[int], float]

_Value = TypeVar("_Value")
Limits = Mapping[str, tuple[Any, Any]]  # type and default, by name


def check_fields(owner: object, values: MutableMapping[str, Any] | None = None, limits: Limits | None = None) -> None:
    """Check the attributes of an object against the types of its class's fields, unless they have their defaults.

    They are kept as :func:`check` returns them.

    Args:
        owner: The object.
        values: Values to check instead of its attributes.
        limits: Type and default of each value instead of those of its class's fields.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of its range.
    """
    values, limits = vars(owner) if values is None else values, limits or _fields(type(owner))  # type: ignore[arg-type]
    for name, value in values.items():
        if name in limits and value is not limits[name][1]:
            values[name] = check(f"`{name}` of {type(owner).__name__}", value, limits[name][0])


def check_arguments(owner: object, values: MutableMapping[str, Any] | None = None) -> None:
    """Check attributes, or other values by name, against the types of the arguments of its class's constructors."""
    check_fields(owner, values, _arguments(type(owner)))  # type: ignore[arg-type]


def check(name: str, value: Any, hint: Any) -> Any:
    """Return a value as Python's own numbers and lists, if it is what a type, with its limits, says.

    Raises:
        TypeError: If it has another type.
        ValueError: If it is out of the range, none of the choices, or an empty text.
    """
    value, kind, args = to_number(value) if isinstance(value, np.generic) else value, get_origin(hint), get_args(hint)
    if kind is Annotated:
        _check_number(name, value, args[1], whole=args[0] is int)
    elif kind is Literal:
        if not isinstance(value, type(args[0])) or isinstance(value, bool) or value not in args:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, args))}, got {short_repr(value)}.")
    elif kind in (Union, UnionType):
        return _check_any(name, value, [arg for arg in args if arg is not type(None)], optional=type(None) in args)
    elif kind is Callable or hint is Callable or getattr(kind, "__name__", "") == "Callable":
        if not callable(value):
            raise TypeError(f"{name} must be a function, got {short_repr(value)}.")
    elif kind in (list, Sequence):
        if not is_sequence(value):
            raise TypeError(f"{name} must be a list, got {short_repr(value)}.")
        return [check(name, item, args[0]) for item in value]
    elif hint is bool and not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {short_repr(value)}.")
    elif isinstance(kind or hint, type) and hint not in (Any, float, int) and not isinstance(value, kind or hint):
        cls = kind or hint
        hint = f" Call it: {value.__name__}(...)." if isinstance(value, type) and issubclass(value, cls) else ""
        raise TypeError(f"{name} must be of the type {cls.__name__}, got {short_repr(value)}.{hint}")
    elif hint is str and not value:
        raise ValueError(f"{name} must not be empty.")
    return value


def _check_any(name: str, value: Any, kinds: Sequence[Any], *, optional: bool) -> Any:
    """Return a value that has one of several types.

    Raises:
        TypeError: If it has none: the error of the first one.
        ValueError: If it is out of the range of the first one.
    """
    if value is None and optional:
        return None
    errors: list[Exception] = []
    for kind in kinds:
        try:
            return check(name, value, kind)
        except (TypeError, ValueError) as error:
            errors.append(error)
    raise errors[0]


def _check_number(name: str, value: Any, interval: str, *, whole: bool) -> None:
    low, high = (float(end) for end in interval[1:-1].split(","))
    inside = (
        is_number(value)
        and (not whole or isinstance(value, numbers.Integral))
        and (
            low < value < high
            or (value == low and interval[0] == "[" and low > -math.inf)
            or (value == high and interval[-1] == "]" and high < math.inf)
        )
    )
    if not inside:
        raise ValueError(f"{name} must be a {'whole ' * whole}number in {interval}, got {short_repr(value)}.")


def is_number(value: object) -> bool:
    """Return whether a value is a real number, of Python or numpy; booleans do not count."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_sequence(value: object) -> bool:
    """Return whether a value is a sequence or an array; a string does not count."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def to_number(value: _Value) -> _Value:
    """Return a number of numpy as Python's that is written alike, any other value as it is.

    ``np.float32(0.29)`` becomes 0.29, not 0.28999999165534973. Checkpoints hold plain numbers alone, and what is
    computed with a number of numpy has its precision.
    """
    if isinstance(value, np.floating):
        return float(str(value))  # type: ignore[return-value]
    return value.item() if isinstance(value, np.generic) else value


def to_indices(name: str, values: Any) -> np.ndarray:
    """Return sample indices, of an array, a list or a tensor, as int64.

    Raises:
        TypeError: If they are not integers; a mask of booleans is not.
        ValueError: If they are not 1-D.
    """
    array = to_array(name, values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise (TypeError if array.ndim == 1 else ValueError)(
            f"`{name}` must be whole numbers, 1-D, one index after the other, got {array.dtype} of shape "
            f"{array.shape}.{' Give `numpy.flatnonzero(mask)`.' * (array.dtype == bool)}"
        )
    return array.astype(np.int64)


def to_array(name: str, values: Any) -> np.ndarray:
    """Return an array, a list, a tuple or a tensor as an array; an empty one, or one of whole numbers, holds integers.

    Raises:
        TypeError: If numpy cannot make an array of it, as of rows of unequal lengths.
    """
    try:
        # a tensor may need a gradient or lie on a device
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"`{name}` must be an array, a list or a tensor, got {short_repr(values)} ({error})."
        ) from error
    if array.dtype == object and all(_is_whole(value) for value in array.flat):
        return array.astype(np.int64)  # such as a column of a table that held missing values
    return array.astype(np.int64) if array.shape == (0,) else array


def _is_whole(value: object) -> bool:
    """Return whether a value is a whole number that fits into 64 bits; a flag is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and abs(int(value)) < 2**63


@cache
def _fields(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each field of a class."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: (hint, getattr(cls, name, Parameter.empty)) for name, hint in hints.items() if name[0] != "_"}


@cache
def _arguments(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each argument of the constructors of a class and of its bases."""
    found: dict[str, tuple[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        if "__init__" in vars(base) and base is not object:
            hints = get_type_hints(vars(base)["__init__"], include_extras=True)
            for parameter in inspect.signature(vars(base)["__init__"]).parameters.values():
                if parameter.name in hints and parameter.kind is not Parameter.VAR_KEYWORD:
                    found[parameter.name] = hints[parameter.name], parameter.default
    return found


def at_round(owner: object, name: str, round_index: int) -> float:
    """Return the value of a setting in a round, from 0.

    Raises:
        ValueError: If it is a function whose value is out of the setting's range.
    """
    value = getattr(owner, name)
    if not callable(value):
        return float(value)
    found = value(round_index)
    limits = next(arg for arg in get_args(_fields(type(owner))[name][0]) if get_origin(arg) is Annotated)  # type: ignore[arg-type]
    check(f"`{name}({round_index})` of {type(owner).__name__}", found, limits)
    return float(found)


def checked_vector(owner: object, method: str, returned: object, like: Tensor, *, finite: int = 0) -> Tensor:
    """Return what a part's method returned for a vector, in the vector's type and without a graph.

    Args:
        owner: The part.
        method: The method's name.
        returned: What it returned.
        like: A vector of the right shape, type and device.
        finite: How many values, from the first on, must be finite.

    Raises:
        TypeError: If it is no floating-point tensor of the vector's shape and device.
        FloatingPointError: If it has NaN or infinite values.
    """
    if returned is like:
        return like
    if not isinstance(returned, Tensor) or not _is_vector_like(returned, like):
        got = f"{returned.dtype} of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else repr(returned)
        raise TypeError(
            f"`{type(owner).__name__}.{method}` must return a floating-point tensor of shape {tuple(like.shape)} on "
            f"{like.device}, got {got}."
        )
    if finite and not is_finite(returned[:finite]):
        raise FloatingPointError(
            f"`{type(owner).__name__}.{method}` returned NaN or infinite values. Check its arithmetic: a division by "
            "0, a root or a logarithm, a number that grows without bounds."
        )
    vector: Tensor = returned.detach().as_subclass(Tensor).to(like.dtype)  # a checkpoint holds no user-defined class
    return vector


def _is_vector_like(tensor: Tensor, like: Tensor) -> bool:
    """Return whether a tensor is a dense floating-point one of a vector's shape and device."""
    is_dense = tensor.is_floating_point() and tensor.layout is torch.strided
    return is_dense and tensor.shape == like.shape and tensor.device == like.device


def is_finite(vector: Tensor) -> bool:
    """Return whether all values are finite; one sum is cheaper than a test of each, and enough if it is finite."""
    return math.isfinite(vector.sum()) or bool(vector.isfinite().all())


def to_python(state: Any) -> Any:
    """Return a state with numbers of numpy as Python's, so that ``torch.load(weights_only=True)`` reads it."""
    if isinstance(state, Mapping):
        return {to_python(key): to_python(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [to_python(value) for value in state]
    return state.tolist() if isinstance(state, (np.generic, np.ndarray)) else state


def is_user_defined(cls: type) -> bool:
    """Return whether a class does not come with the library."""
    return cls.__module__.partition(".")[0] != "fl_lightning"


# ---- signatures and texts ----


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
    found: dict[str, Parameter] = {}
    not_taken = getattr(cls, "not_taken", ())
    owners = [base for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    for base in owners:
        _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in parameters:
            if parameter.kind is not Parameter.VAR_KEYWORD and parameter.name not in not_taken:
                shown = parameter if base is owners[0] else parameter.replace(kind=Parameter.KEYWORD_ONLY)
                found.setdefault(parameter.name, shown)
        if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return Signature(sorted(found.values(), key=lambda parameter: parameter.kind))


def arguments(instance: object) -> dict[str, Any]:
    """Return the values of an object's constructor arguments by name, if attributes of these names have them."""
    stored_as = getattr(type(instance), "stored_as", {})
    names = [(name, stored_as.get(name, name)) for name in full_signature(type(instance)).parameters]
    return {name: getattr(instance, attribute) for name, attribute in names if hasattr(instance, attribute)}


def represent(instance: object, *facts: str, always: Sequence[str] = (), leave_out: Sequence[str] = ()) -> str:
    """Return the class and the constructor arguments of an object that differ from their defaults, in one line.

    Args:
        instance: The object; the value of an argument is the attribute of the same name.
        *facts: Texts that come first, such as ``"3 clients"``.
        always: Arguments that are shown even if they have their default values.
        leave_out: Arguments that are not shown.

    Returns:
        For example ``DirichletPartitioner(num_clients=100, alpha=0.3, seed=0)``.
    """
    parameters, shown = full_signature(type(instance)).parameters, []
    for name, value in arguments(instance).items():
        if name in leave_out:
            continue
        if parameters[name].kind is Parameter.VAR_POSITIONAL:
            shown += [short_repr(item) for item in value]
        elif name in always or not _is_default(value, parameters[name].default):
            shown.append(f"{name}={short_repr(value)}")
    return f"{type(instance).__name__}({', '.join([*facts, *shown])})"


def _is_default(value: object, default: object) -> bool:
    # True is no 1, and an array is equal to a number in more than one way
    if value is default or default is Parameter.empty or isinstance(value, bool) != isinstance(default, bool):
        return value is default
    return not isinstance(value, np.ndarray) and bool(value == default)


class _Short(reprlib.Repr):
    """Shows arrays by their shape, functions by their name, and cuts long strings and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 4
        self.maxlevel = 3

    def repr_instance(self, x: Any, level: int) -> str:
        """Return an object's ``repr`` if that is one short line without addresses, otherwise its class."""
        if isinstance(x, os.PathLike):
            return self.repr1(os.fspath(x), level)
        if isinstance(x, type) or inspect.isroutine(x):
            return x.__name__
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple):
            return f"<{type(x).__name__} of shape {tuple(shape)}>" if shape else self.repr1(x.item(), level)
        if type(x).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
            return f"<{type(x).__name__}>"
        text = repr(x)
        return f"{type(x).__name__}(...)" if "\n" in text or " at 0x" in text or len(text) > 160 else text

    repr_type = repr_builtin_function_or_method = repr_function = repr_instance


_short = _Short()


def short_repr(value: object) -> str:
    """Return a value in a few words: arrays by their shape, functions by their name, long strings and lists cut."""
    return _short.repr(value)


def quantity(number: int, noun: str) -> str:
    """Return a number of things as a text: ``"1 client"``, ``"2,000 clients"``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def enumeration(words: Sequence[str], by: str = "and", most: int | None = None) -> str:
    """Return words as a list in a sentence: ``"a, b and c"``.

    Args:
        words: The words.
        by: What is before the last one.
        most: How many are shown, if there are more: ``"a, b and 3 more"``; all if ``None``.
    """
    others = 0 if most is None else len(words) - most
    shown = [*words[:most], f"{others} more"] if others > 1 else words
    return f" {by} ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def duration(seconds: float) -> str:
    """Return a duration as a short text: ``"0.3 s"``, ``"40 s"``, ``"12 min"``, ``"3.5 h"`` or ``"2.1 days"``."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def check_lightning(role: str, thing: object) -> None:
    """Raise ``TypeError`` for an object of ``pytorch_lightning``, the same code in other classes.

    Neither package takes the other's objects for its own: a hook is not called, or Lightning fails with ``Expected a
    parent``.

    Args:
        role: What the object is, as the beginning of a sentence.
        thing: The object.
    """
    if any(base.__module__.split(".")[0] == "pytorch_lightning" for base in type(thing).__mro__):
        raise TypeError(
            f"{role} is a {type(thing).__name__} of `pytorch_lightning`, whose classes are others than those of "
            "`lightning`, which fl-lightning uses. Write `import lightning.pytorch as pl` instead of `import "
            "pytorch_lightning as pl`, in every file that has it."
        )
