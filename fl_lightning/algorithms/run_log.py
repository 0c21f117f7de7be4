"""The settings of a run, as loggers get them, and which of its values the progress bar shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fl_lightning.algorithms.resuming import fingerprints
from fl_lightning.algorithms.versions import __version__, package_versions
from fl_lightning.loop import FederatedLoop
from fl_lightning.signatures import ShowsArguments, arguments
from fl_lightning.words import short_repr

#: Values that the progress bar shows.
IN_THE_BAR = ("fed/epsilon", "fed/local_epsilon")
#: Longer lists are shown shortened.
_MOST_ITEMS = 100


def settings_of_run(callback: object, loop: FederatedLoop) -> dict[str, Any]:
    """Return a run's description for the config of a logger: texts, numbers, and lists and dicts of them.

    Args:
        callback: The aggregation callback.
        loop: Its loop; it keeps the fingerprint of the federation.
    """
    data = loop.data
    parts: dict[str, Any] = {**loop.algorithm.parts, "exchange": loop.algorithm.chain.members}
    return {
        "algorithm": _described(callback),
        "parts": {name: _plain(part) for name, part in parts.items()},
        "data": _described(data),
        "federation": {
            "clients": data.partition.num_clients,
            "training_clients": data.num_clients,
            "training_samples": int(data.client_sizes.sum()),
            "fingerprint": fingerprints(loop)[0],
        },
        "processes": loop.trainer.world_size,
        "versions": {"fl_lightning": __version__, **package_versions()},
    }


def _described(instance: object) -> dict[str, Any]:
    """Return an object's class and the values of its arguments."""
    described: dict[str, Any] = {"name": type(instance).__name__}
    for name, value in arguments(instance).items():
        described[name] = _plain(value)
    return described


def _plain(value: object) -> Any:
    """Return a value as texts and numbers; an object as its class and arguments."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, ShowsArguments):
        return _described(value)
    if is_dataclass(value) and not isinstance(value, type):
        described: dict[str, Any] = {"name": type(value).__name__}
        for each in fields(value):
            described[each.name] = _plain(getattr(value, each.name))
        return described
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS:
        return [_plain(item) for item in value]
    return short_repr(value)
