"""Constructors show what they hand on as ``**options``, and name the argument that a misspelt one meant."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Set
from inspect import Parameter, Signature
from typing import Any, Self, TypeVar, cast

from fl_lightning.sentences import joined

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_OURS = ("fl_lightning", "datamodules")
_USUAL = ("local_epochs", "batch_size")  # arguments that are often given by position by mistake
_MOST_SIBLINGS = 3
_Constructor = TypeVar("_Constructor", bound=Callable[..., None])
#: Words of other libraries, the argument that a class must have for the sentence to be true, and the sentence.
_OTHER_WORDS = (
    (
        {"client_lr", "eta", "learning_rate", "local_lr", "lr"},
        "server_lr",
        "The clients' learning rate is that of your module's optimizer; the server's is `server_lr`.",
    ),
    ({"eta", "learning_rate"}, "lr", "Did you mean `lr`?"),
    (
        {"client_lr", "eta", "learning_rate", "local_lr", "lr"},
        "local_epochs",
        "The clients' learning rate is that of your module's optimizer.",
    ),
    (
        {"communication_rounds", "epochs", "max_epochs", "num_epochs", "num_rounds", "rounds"},
        "local_epochs",
        "Rounds are `Trainer(max_epochs=...)`; a client's passes over its data are `local_epochs`.",
    ),
    ({"batch_size", "train_batch_size"}, "local_epochs", "It belongs to the data module: `batch_size`."),
    (
        {"n_clients", "num_clients", "total_clients"},
        "clients_per_round",
        "It belongs to the partitioner: `num_clients`. Those that train in a round are `clients_per_round`.",
    ),
    ({"clients", "n_clients", "n_parties", "num_partitions"}, "num_clients", "Did you mean `num_clients`?"),
    ({"alpha", "beta", "lam", "lambda_", "proximal_mu", "rho"}, "mu", "Did you mean `mu`?"),
    ({"beta", "concentration", "lam", "lambda_", "mu", "rho"}, "alpha", "Did you mean `alpha`?"),
    (
        {"acc", "accuracy", "auc", "auroc", "f1", "mae", "mse", "r2", "rmse"},
        "metric",
        "Give the function as `metric` and its name as `name`.",
    ),
    (
        {"C", "client_fraction", "frac", "fraction", "fraction_fit", "participation_rate", "sample_fraction"},
        "clients_per_round",
        "Did you mean `clients_per_round`? A float is a fraction.",
    ),
    ({"clients_per_round", "fraction", "local_epochs"}, "partitioner", "It belongs to the algorithm, such as FedAvg."),
    ({"n_clients", "num_clients"}, "partitioner", "It belongs to the partitioner: `num_clients`."),
)


class _FullSignature:
    """The signature of a class, made when it is asked for; an object that can be called keeps its own."""

    def __get__(self, instance: object, cls: type) -> Signature:
        if instance is not None:
            raise AttributeError
        return full_signature(cls)


class ShowsSignature:
    """Lets every subclass show all arguments that its constructor takes, and refuse any other by name.

    In the signature the arguments of the base classes replace ``**options``. ``help(cls)``, ``inspect.signature(cls)``
    and completion show it. Where a constructor says by ``**options: Unpack[SomeTypedDict]`` which arguments it hands
    on, only these are shown.

    The error for an unknown argument names the one that was probably meant. Where a constructor of one's own takes
    ``**options`` of any name, these are not known before it runs; see :func:`names_unknown`.
    """

    __signature__ = _FullSignature()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Lightning's modules save arguments that they find in the frames of their constructors
        if "__init__" in vars(cls) and _is_ours(cls) and not hasattr(cls, "save_hyperparameters"):
            cls.__init__ = _names_missing(vars(cls)["__init__"])  # type: ignore[method-assign]

    def __new__(cls, *given: Any, **options: Any) -> Self:
        """Check the names of the arguments before ``__init__`` runs."""
        if options:
            _check_names(cls, options)
        if given:
            _refuse_by_position(cls, given, options)
        return super().__new__(cls)


def names_unknown(constructor: _Constructor) -> _Constructor:
    """Return a base class's constructor that refuses unknown arguments as :class:`ShowsSignature` does.

    Arguments that a user's subclass hands on as ``**options`` are known only here.
    """
    known = {*inspect.signature(constructor).parameters}

    @functools.wraps(constructor)
    def checked(self: object, *args: Any, **options: Any) -> None:
        _refuse_unknown(type(self), options, known)
        constructor(self, *args, **options)

    return cast(_Constructor, checked)


def _check_names(cls: type, options: Mapping[str, object]) -> None:
    known = _names_taken(cls)
    if known is not None:
        _refuse_unknown(cls, options, known)


def _refuse_by_position(cls: type, given: tuple[object, ...], options: Mapping[str, object]) -> None:
    """Raise ``TypeError`` if the class that the user called takes fewer arguments by position, or has one twice."""
    owners = _owners(cls)
    if not owners:
        raise TypeError(f"{cls.__name__}() takes no arguments")
    parameters = _parameters(owners[0])
    in_order = [f"`{each.name}`" for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, _NAMED[0])]
    twice = [name.strip("`") for name in in_order[: len(given)] if name.strip("`") in options]
    if twice:
        place = in_order.index(f"`{twice[0]}`")
        raise TypeError(
            f"{cls.__name__} takes {joined(in_order)} by position, so {given[place]!r} is its `{twice[0]}`, which is "
            f"given by name as well: {options[twice[0]]!r}. Give all arguments by name."
        )
    if len(given) <= len(in_order) or any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
        return
    by_name = [each.name for each in full_signature(cls).parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
    usual = next((name for name in _USUAL if name in by_name), by_name[0] if by_name else None)
    if usual is None:
        if not in_order:
            raise TypeError(f"{cls.__name__} takes no arguments, got {len(given)}.")
        raise TypeError(f"{cls.__name__} takes {joined(in_order)} and no more, got {len(given)} arguments.")
    surplus = given[len(in_order)]
    example = f"such as {usual}={surplus!r}" if isinstance(surplus, (int, float, str)) else f"such as `{usual}`"
    if in_order:
        raise TypeError(f"{cls.__name__} takes {joined(in_order)} by position, all else by name, {example}.")
    raise TypeError(f"{cls.__name__} takes its arguments by name, {example}.")


def _refuse_unknown(cls: type, options: Mapping[str, object], known: Set[str]) -> None:
    """Raise ``TypeError`` in the name of the class that the user called, if it does not know an argument."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise TypeError(f"{cls.__name__} has no argument `{unknown[0]}`.{_meant(unknown[0], cls)}")


def _meant(word: str, cls: type) -> str:
    """Return a sentence on what an unknown argument means here, or with the arguments that there are."""
    taken = full_signature(cls).parameters
    for words, argument, sentence in _OTHER_WORDS:
        if word in words and argument in taken:
            return f" {sentence}"
    if siblings := _siblings_with(word, cls):
        return f" `{word}` belongs to {joined(siblings)}."
    names = [name for name, parameter in taken.items() if parameter.kind in _NAMED]
    meant = [name for name in names if name.startswith(f"{word}_")] or difflib.get_close_matches(word, names, n=1)
    if meant:
        return f" Did you mean {' or '.join(f'`{name}`' for name in meant)}?"
    return f" It takes {', '.join(f'`{name}`' for name in names)}." if names else ""


def _siblings_with(word: str, cls: type) -> list[str]:
    """Return which public classes of the same package and kind take an argument; those whose first one it is, if any.

    Nothing is returned for an argument that many classes take.
    """
    ours = next((base for base in cls.__mro__ if _is_ours(base)), cls)
    package = ours.__module__.rpartition(".")[0]
    root = next(
        base for base in reversed(cls.__mro__) if issubclass(base, ShowsSignature) and base is not ShowsSignature
    )
    found: dict[str, bool] = {}
    below = list(root.__subclasses__())
    while below:
        other = below.pop(0)
        below += other.__subclasses__()
        is_near = other.__module__.rpartition(".")[0] == package and not other.__name__.startswith("_")
        if is_near and _owners(other) and not inspect.isabstract(other):
            named = [each.name for each in full_signature(other).parameters.values() if each.kind in _NAMED]
            if word in named:
                found[other.__name__] = named[0] == word
    first = [name for name, is_first in found.items() if is_first]
    return first or (list(found) if len(found) <= _MOST_SIBLINGS else [])


def _names_missing(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor whose error for a missing argument says what the argument is; itself if none is needed."""
    _, *parameters = inspect.signature(constructor).parameters.values()
    if not any(each.kind in _NAMED and each.default is Parameter.empty for each in parameters):
        return constructor
    in_order = [each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    needed = [each.name for each in parameters if each.kind in _NAMED and each.default is Parameter.empty]

    @functools.wraps(constructor)
    def checked(self: object, *args: Any, **options: Any) -> None:
        given = {*in_order[: len(args)], *options}
        missing = [name for name in needed if name not in given]
        if missing:
            texts = " and ".join(f"`{name}`{_described(type(self), name)}" for name in missing)
            raise TypeError(f"{type(self).__name__} needs {texts}.")
        constructor(self, *args, **options)

    return checked


def _described(cls: type, argument: str) -> str:
    """Return the first clause on an argument in the docstring of a class or of its bases, in brackets."""
    for owner in cls.__mro__:
        text = re.search(rf"^ +{argument}: (.+?)(?:[.;](?:\s|$)|\n *\w+: |\n\n|\Z)", owner.__doc__ or "", re.M | re.S)
        if text:
            words = re.sub(r":\w+:`~?([^`]+)`", r"\1", text[1]).replace("``", "`").split()
            return f" ({' '.join(words)})"
    return ""


@functools.cache
def _names_taken(cls: type) -> Set[str] | None:
    """Return the names that a class's constructor takes, shown or not; ``None`` if that cannot be known."""
    names: set[str] = set()
    for owner in _owners(cls):
        parameters = _parameters(owner)
        names |= {each.name for each in parameters if each.kind in _NAMED}
        rest = next((each for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        if rest is None:
            break
        # a constructor of one's own may take some of them out; those of the package hand all of them on
        if not _is_ours(owner) and _names_of(rest, owner) is None:
            return None
    return names


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _OURS


def full_signature(cls: type) -> Signature:
    """Return the arguments of a class's constructor and those that it hands on to constructors of base classes."""
    found: dict[str, Parameter] = {}
    handed_on: set[str] | None = None  # names; None for any
    rest: Parameter | None = None
    for place, owner in enumerate(_owners(cls)):
        parameters = _parameters(owner)
        rest = next((each for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        for parameter in parameters:
            if place == 0 and parameter is not rest:
                found[parameter.name] = parameter
            elif parameter.kind in _NAMED and (handed_on is None or parameter.name in handed_on):
                found.setdefault(parameter.name, parameter.replace(kind=Parameter.KEYWORD_ONLY))
        if rest is None:
            break
        names = _names_of(rest, owner)
        handed_on = names if handed_on is None else handed_on if names is None else handed_on & names
    ordered = [*found.values(), *([] if rest is None else [rest])]
    return Signature(sorted(ordered, key=lambda parameter: parameter.kind))


def _owners(cls: type) -> list[type]:
    """Return the classes with constructors of their own, the nearest first."""
    return [base for base in cls.__mro__ if "__init__" in vars(base) and base is not object]


def _parameters(owner: type) -> list[Parameter]:
    """Return the arguments of a class's own constructor."""
    [_, *parameters] = inspect.signature(vars(owner)["__init__"]).parameters.values()
    return parameters


def _names_of(options: Parameter, owner: type) -> set[str] | None:
    """Return the names in the TypedDict that annotates ``**options``; ``None`` if there is none."""
    text = re.fullmatch(r"Unpack\[(\w+)\]", str(options.annotation))
    kind = getattr(sys.modules.get(owner.__module__), text[1], None) if text else None
    keys = getattr(kind, "__required_keys__", None), getattr(kind, "__optional_keys__", None)
    return None if keys[0] is None else set(keys[0]) | set(keys[1] or ())
