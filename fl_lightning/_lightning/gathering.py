"""Gathers objects of all processes."""

from __future__ import annotations

import io
import pickle
from functools import partial
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch.distributed
from torch.serialization import default_restore_location

T = TypeVar("T")


def gather_objects(trainer: pl.Trainer, mine: T) -> list[T]:
    """Return the object of every process of a trainer, in the order of ranks; call it on all of them.

    Tensors are where they would be with a single process: those of a GPU arrive on the receiver's own GPU, others on
    the CPU.

    Args:
        trainer: The trainer. One of a single process asks no other, also where an earlier trainer has left a group of
            several.
        mine: This process's object; it must be possible to pickle it.
    """
    if trainer.world_size == 1:
        return [mine]
    device = trainer.strategy.root_device
    everyone: list[Any] = [None] * trainer.world_size
    if device.type == "cpu":
        torch.distributed.all_gather_object(everyone, mine)
        return everyone
    torch.distributed.all_gather_object(everyone, packed(mine))
    return [unpacked(share, device) for share in everyone]


def packed(thing: Any) -> bytes:
    """Return an object as bytes."""
    buffer = io.BytesIO()
    torch.save(thing, buffer, pickle_protocol=pickle.DEFAULT_PROTOCOL)
    return buffer.getvalue()


def unpacked(content: bytes, device: torch.device) -> Any:
    """Return an object of bytes that :func:`packed` made; its tensors are on the CPU if they were, else on a device."""
    return torch.load(io.BytesIO(content), map_location=partial(arrived, device), weights_only=False)


def arrived(device: torch.device, storage: Any, place: str) -> Any:
    """Return the values of a tensor, which have been read to the CPU, where they belong.

    Args:
        device: The receiver's.
        storage: The values.
        place: Where they were, such as ``"cpu"`` or ``"cuda:1"``.
    """
    return storage if place == "cpu" else default_restore_location(storage, str(device))
