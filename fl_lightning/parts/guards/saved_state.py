"""The state of a part as a checkpoint holds it: only what ``torch.load(weights_only=True)`` reads again."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import got, plain
from fl_lightning.super_calls import is_of_library

#: Where a part's state holds the vectors that clients keep for it, by attribute.
CLIENT_STATES = "fl_lightning.client_states"
#: Where it holds the states of the parts that it holds, by place and class.
HELD_PARTS = "fl_lightning.held_parts"
_SINGLE = {
    *(type(None), bool, int, float, complex, str, bytes, bytearray),
    *(Tensor, torch.nn.Parameter, torch.nn.Buffer, torch.dtype, torch.device, torch.Size),
}
_SEQUENCES = (list, tuple, set)
_MAPPINGS = (dict, OrderedDict, Counter)
#: What to save instead, by the type of a value.
_WAYS_OUT: tuple[tuple[type, str], ...] = (
    (np.ndarray, "Save `torch.as_tensor(array)` or `array.tolist()`, and make an array of it in `load_state_dict`."),
    (np.random.Generator, "Save `rng.bit_generator.state`, which is a dict, and set it in `load_state_dict`."),
    (torch.Generator, "Save `generator.get_state()`, and give it to `generator.set_state` in `load_state_dict`."),
    (random.Random, "Save `random.getstate()`, and give it to `setstate` in `load_state_dict`."),
    (deque, "Save `list(...)` of it."),
    (defaultdict, "Save `dict(...)` of it."),
    (Mapping, "Save `dict(...)` of it."),
    (frozenset, "Save `sorted(...)` or `set(...)` of it."),
    (range, "Save `list(...)` of it."),
    (tuple, "Save `tuple(...)` of it."),
    (PurePath, "Save `str(...)` of it."),
    (Tensor, "Save `value.as_subclass(torch.Tensor)`."),
)


def readable(part: object, state: Any) -> dict[str, Any]:
    """Return the state of a part with numbers of numpy as Python's, after a check that a checkpoint can hold it.

    Args:
        part: The part.
        state: What its ``state_dict`` returned.

    Raises:
        TypeError: If it is no dict, or holds anything that ``torch.load(weights_only=True)`` does not read.
    """
    name = f"`{type(part).__name__}.state_dict`"
    if not isinstance(state, dict):
        hint = " Is a `return` missing at its end?" if state is None else ""
        raise TypeError(f"{name} returned {got(state)}; it must return a dict.{hint}")
    return dict(_readable(name, "", state if type(state) in _MAPPINGS else dict(state)))


def _readable(name: str, path: str, value: Any) -> Any:
    kind = type(value)
    if kind in _SINGLE:
        return value
    if kind in _SEQUENCES:
        items = [_readable(name, f"{path}[{place}]", item) for place, item in enumerate(value)]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else kind(items)
    if kind in _MAPPINGS:
        keys = [_readable(name, f"{path}[{key!r}]", key) for key in value]
        items = [_readable(name, f"{path}[{key!r}]", item) for key, item in value.items()]
        same = all(new is old for new, old in zip([*keys, *items], [*value, *value.values()], strict=True))
        return value if same else kind(dict(zip(keys, items, strict=True)))
    if isinstance(value, np.generic) and type(plain(value)) in _SINGLE:
        return plain(value)
    hint = next((text for known, text in _WAYS_OUT if isinstance(value, known)), "Save what it is made of.")
    raise TypeError(
        f"{name} holds {got(value)}, of type {kind.__module__}.{kind.__qualname__}, at `state{path}`. A checkpoint "
        "with it could not be read again: a state may hold tensors, numbers, texts, None, and lists, tuples, sets and "
        f"dicts of these. {hint}"
    )


def defines(cls: type, method: str) -> bool:
    """Return whether a method of a class is a user's own, not one of the library's."""
    return not is_of_library(next(base for base in cls.__mro__ if method in vars(base)))


def refuse_lost_state(
    part: object,
    vectors: Mapping[str, Any],
    states: Mapping[str, Any],
    held: Mapping[str, Any],
    parts: Mapping[str, Any],
) -> None:
    """Raise ``ValueError`` if a part cannot take what a checkpoint holds beside its own state.

    Args:
        part: The part.
        vectors: The saved vectors of clients, by attribute.
        states: Those that it keeps now.
        held: The saved states of the parts that it held.
        parts: Those that it holds now.
    """
    name = type(part).__name__
    if vectors.keys() != states.keys():
        raise ValueError(
            f"The checkpoint holds clients' vectors of {name} in {_listed(vectors)}, but this run's {name} keeps them "
            f"in {_listed(states)}. Resume with the arguments of the run that wrote it, and make each `ClientStates` "
            "in `on_fit_start`."
        )
    for name_, saved in vectors.items():
        now, then = len(states[name_].mean), len(saved["mean"])
        if now != then:
            raise ValueError(
                f"The checkpoint holds {then:,} values of each client in `{name}.{name_}`, but this run keeps {now:,}. "
                "Resume with the arguments of the run that wrote it."
            )
    lost = [key.partition("-")[2] for key, state in held.items() if state and key not in parts]
    if lost:
        raise ValueError(
            f"The checkpoint holds the state of {', '.join(lost)}, which {name} no longer holds. Resume with the "
            "arguments of the run that wrote it."
        )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no attribute"


def refuse_half_state(cls: type) -> None:
    """Raise ``TypeError`` if a class defines how its state is saved, or how it is loaded, but not both.

    A base class's way to save may suit another way to load, unless it saves nothing.
    """
    saves, loads = "state_dict" in vars(cls), "load_state_dict" in vars(cls)
    if saves and not loads and is_of_library(next(base for base in cls.__mro__[1:] if "load_state_dict" in vars(base))):
        raise TypeError(
            f"{cls.__name__} defines `state_dict`, but no `load_state_dict(state)`, so that a resumed run would begin "
            "without the state that it saves. Define both."
        )
    bases = (base for base in cls.__mro__[1:] if "state_dict" in vars(base))
    if loads and not saves and next(bases).__name__ == "Part":
        raise TypeError(
            f"{cls.__name__} defines `load_state_dict`, but no `state_dict()`, so that checkpoints hold nothing that "
            "it could load. Define both."
        )
