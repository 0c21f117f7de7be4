"""Models as the arrays that travel.

Down goes a model: the trained parameters that travel, and the buffers that training changes. Up goes the model that the
client sends, as far as the server does not know it: all of its parameters that travel, or, after a sparse compression,
those that differ from the model that the client received, with their places.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts.messages import ClientResult, Payload
from fl_lightning.parts.run import Run

#: Whole numbers of the size of floating-point ones, in which two are the same if all bits are.
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def is_sparse(payload: Payload, whole: Payload) -> bool:
    """Return whether a message holds single values with their places, given the message with all values."""
    return payload == whole.sparse(payload.values, of=whole.values) and payload.values < whole.values


def layout_digest(run: Run) -> str:
    """Return a text that changes with the names, shapes or type of the model's tensors."""
    layout = run.federation.layout
    shapes = [tuple(shape) for shape in layout.shapes]
    named = repr((layout.names, shapes, layout.num_trained, str(run.federation.model.dtype)))
    return hashlib.sha256(named.encode()).hexdigest()


def values_digest(model: Tensor) -> str:
    """Return a text that changes with the values of a model."""
    return hashlib.sha256(to_array(model).tobytes()).hexdigest()


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor's values as an array on the CPU."""
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def traveling_buffers(run: Run, names: Iterable[str]) -> list[str]:
    """Return those of the named buffers that travel, in the model's order."""
    named = set(names)
    exchange = run.algorithm.chain
    return [name for name in run.federation.layout.buffers if name in named and exchange.travels(name)]


# ---- down ----


def pack_model(run: Run, model: Tensor, buffers: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a model, shape ``(size,)``, with these buffers."""
    return {"model": to_array(_sent(run, model)), **_pack_buffers(run, model, buffers)}


def unpack_model(run: Run, base: Tensor, arrays: Mapping[str, np.ndarray], buffers: Sequence[str]) -> Tensor:
    """Return the model that was packed, shape ``(size,)``; what did not travel is the base's.

    Raises:
        ValueError: If an array has another shape or type than the model.
    """
    values = _checked("model", arrays, _sent(run, base))
    return _unpack_buffers(run, _with_sent(run, base, values), arrays, buffers)


# ---- up ----


def pack_result(run: Run, result: ClientResult, buffers: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a result as it left the exchanges, with these buffers."""
    sent = _sent(run, result.vector)
    packed = _pack_buffers(run, result.vector, buffers)
    if not is_sparse(result.payload, run.books.payload):
        return {"model": to_array(sent), **packed}
    kind = _BITS[sent.dtype]
    differs = sent.view(kind) != _sent(run, result.received).contiguous().view(kind)
    places = differs.nonzero().squeeze(1)
    return {"values": to_array(sent[places]), "places": pack_places(to_array(places), len(sent)), **packed}


def unpack_result(run: Run, start: Tensor, arrays: Mapping[str, np.ndarray], buffers: Sequence[str]) -> Tensor:
    """Return the model that a client sends, shape ``(size,)``.

    Args:
        run: The server's run.
        start: The model that the client received, as the server knows it, shape ``(size,)``.
        arrays: What :meth:`pack_result` returned.
        buffers: Names of the buffers in it.

    Raises:
        ValueError: If an array has another shape or type than the model.
    """
    before = _sent(run, start)
    if "places" not in arrays:
        values = _checked("model", arrays, before)
    else:
        changed = _checked("values", arrays, before.new_empty(len(arrays["values"])))
        places = unpack_places(arrays["places"], len(changed), len(before))
        values = before.index_copy(0, torch.from_numpy(places).to(before.device), changed)
    return _unpack_buffers(run, _with_sent(run, start, values), arrays, buffers)


def pack_places(places: np.ndarray, of: int) -> np.ndarray:
    """Return places among ``of`` values with ``ceil(log2 of)`` bits each, as bytes."""
    bits = np.arange(_bits_of_place(of))
    return np.packbits((places[:, None] >> bits & 1).astype(np.uint8))


def unpack_places(packed: np.ndarray, number: int, of: int) -> np.ndarray:
    """Return the places that were packed, int64, shape ``(number,)``.

    Raises:
        ValueError: If one is beyond the values.
    """
    bits = np.arange(_bits_of_place(of))
    flags = np.unpackbits(packed, count=number * len(bits)).reshape(number, len(bits)).astype(np.int64)
    places: np.ndarray = (flags << bits).sum(1)
    if number and int(places.max()) >= of:
        raise ValueError(f"A client sent a value for place {int(places.max())} of {of}.")
    return places


def _bits_of_place(of: int) -> int:
    return math.ceil(math.log2(of)) if of > 1 else 0


# ---- both ways ----


def _sent(run: Run, model: Tensor) -> Tensor:
    """Return the trained parameters that travel, shape ``(num_sent,)``."""
    parameters, _ = run.federation.layout.split(model)
    return run.federation.traveling_values(parameters)


def _with_sent(run: Run, model: Tensor, values: Tensor) -> Tensor:
    """Return a model with other values of the parameters that travel."""
    parameters, buffers = run.federation.layout.split(model)
    return torch.cat([run.federation.filled(values, parameters), buffers])


def _pack_buffers(run: Run, model: Tensor, names: Sequence[str]) -> dict[str, np.ndarray]:
    if not names:
        return {}
    views = run.federation.layout.named(model)
    return {"buffers": to_array(torch.cat([views[name].flatten() for name in names]))}


def _unpack_buffers(run: Run, model: Tensor, arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> Tensor:
    """Return a new model with the buffers that were packed."""
    if not names:
        return model
    renewed = model.clone()
    views = run.federation.layout.named(renewed)
    like = torch.cat([views[name].flatten() for name in names])
    values = _checked("buffers", arrays, like)
    pieces = values.split([views[name].numel() for name in names])
    for name, piece in zip(names, pieces, strict=True):
        views[name].copy_(piece.view_as(views[name]))
    return renewed


def _checked(name: str, arrays: Mapping[str, np.ndarray], like: Tensor) -> Tensor:
    """Return an array as a tensor.

    Raises:
        ValueError: If it has another shape or type.
    """
    if name not in arrays:
        raise ValueError(f"The message has no array {name!r}.")
    values = torch.from_numpy(arrays[name])
    if values.shape != like.shape or values.dtype != like.dtype:
        raise ValueError(
            f"The message's array {name!r} must have shape {tuple(like.shape)} and type {like.dtype}, got "
            f"{tuple(values.shape)} and {values.dtype}."
        )
    return values.to(like.device)
