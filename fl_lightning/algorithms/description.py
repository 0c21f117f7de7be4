"""Describes a run in its checkpoint: its clients, its evaluation data, its parts and its settings."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.clients.resumed_run import describe_optimizers
from fl_lightning.data import FederatedDataModule
from fl_lightning.loop import FederatedLoop
from fl_lightning.representation import ShowsArguments, arguments, short
from fl_lightning.tensor_bytes import tensor_bytes

#: They change no result; a seed is compared by itself.
_IRRELEVANT = {"clients_at_once", "state_dir", "seed"}
#: Arguments of data modules that change no sample of a fit, or whose effect is in the fingerprints.
_IRRELEVANT_OF_DATA = {
    *("data_dir", "cache_dir", "download", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"),
    *("partitioner", "split", "clients", "val", "test", "class_names"),
}
_MOST_DEEP = 4  # objects within objects
_MOST_NUMBERS = 1_000_000  # of an array; the digest of a longer one holds its beginning


def fingerprints(loop: FederatedLoop) -> tuple[str, str]:
    """Return texts that change with the clients that train or their order, and with the validation or test data.

    Each holds numbers and a digest of clients, sample indices, and labels if there are any. The loop keeps the texts,
    which take some milliseconds.
    """
    if loop.fingerprints is None:
        loop.fingerprints = _of_training(loop.data), _of_evaluation(loop.data)
    return loop.fingerprints


def _of_training(data: FederatedDataModule) -> str:
    digest = _digest_of(data, data.federated_split.train)
    digest.update(data.partition.fingerprint().encode())
    return f"{data.num_clients} clients, {int(data.client_sizes.sum())} samples, {digest.hexdigest()[:12]}"


def _of_evaluation(data: FederatedDataModule) -> str:
    split, texts = data.federated_split, []
    for name, parts in (("validation", split.val), ("test", split.test)):
        number = sum(map(len, parts.values()))
        texts.append(f"{number} {name} samples, {_digest_of(data, parts).hexdigest()[:12]}")
    return ", ".join(texts)


def _digest_of(data: FederatedDataModule, parts: Mapping[int, np.ndarray]) -> Any:
    """Return the SHA-256 of the clients' ids, sample indices and labels."""
    digest = hashlib.sha256()
    for client, indices in parts.items():
        digest.update(np.array([client, len(indices)], "<i8").tobytes())
        digest.update(indices.astype("<i8").tobytes())
        if data.labels is not None:
            digest.update(data.labels[indices].astype("<i8").tobytes())
    return digest


def describe_run(callback: object, loop: FederatedLoop) -> dict[str, Any]:
    """Return the description that is compared when a run resumes: texts, numbers, and lists and dicts of them.

    Args:
        callback: The aggregation callback.
        loop: Its loop.
    """
    federation, evaluation = fingerprints(loop)
    given = {name: value for name, value in arguments(callback).items() if name not in _IRRELEVANT}
    for name, value in _settings_of_data(loop.data).items():
        given[f"the data's {name}" if name in given else name] = value
    return {
        "seed": loop.settings.seed,
        "federation": federation,
        "evaluation": evaluation,
        "optimizers": describe_optimizers(loop.trainer),
        "settings": {name: described(value) for name, value in given.items()},
    }


def _settings_of_data(data: FederatedDataModule) -> dict[str, Any]:
    """Return the arguments of a data module that change what is computed on the same samples."""
    given = {name: value for name, value in arguments(data).items() if name not in _IRRELEVANT_OF_DATA}
    return {**given, "collate_fn": data.source_collate_fn, "poisons": data.poisons}


def described(value: object) -> list[str]:
    """Return a value in a few words, and a digest of all that it holds; of functions only the names."""
    return [short(value), hashlib.sha256(_whole(value).encode()).hexdigest()[:16]]


def _whole(value: object, depth: int = 0) -> str:
    """Return a text of all that a setting holds, the same in every process."""
    if isinstance(value, Tensor):
        some = tensor_bytes(value)[: _MOST_NUMBERS * value.itemsize]
        kind = str(value.dtype).removeprefix("torch.")  # as numpy's are written
        return f"{kind}{tuple(value.shape)}{hashlib.sha256(some).hexdigest()}"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        beginning = value.reshape(-1)[:_MOST_NUMBERS]
        return f"{value.dtype}{value.shape}{hashlib.sha256(beginning.tobytes()).hexdigest()}"
    if depth < _MOST_DEEP:
        if isinstance(value, Mapping):
            value = list(value.items())
        if isinstance(value, (list, tuple)):
            return f"[{_all(value, depth)}]"
        if isinstance(value, Set):
            return f"{{{', '.join(sorted(_whole(item, depth + 1) for item in value))}}}"
        if isinstance(value, ShowsArguments):
            return f"{type(value).__qualname__}{_whole(arguments(value), depth + 1)}"
        if isinstance(value, functools.partial):
            return f"partial({_all((value.func, value.args, value.keywords), depth)})"
    return _text(value)


def _all(values: Iterable[object], depth: int) -> str:
    return ", ".join(_whole(item, depth + 1) for item in values)


def _text(value: object) -> str:
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    if inspect.isroutine(value) or isinstance(value, type):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if type(value).__repr__ is object.__repr__:
        return type(value).__qualname__
    try:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except Exception:
        return type(value).__qualname__
