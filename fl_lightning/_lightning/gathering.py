"""Gathers objects of all processes."""

from __future__ import annotations

from typing import TypeVar

import lightning.pytorch as pl
import torch.distributed

T = TypeVar("T")


def gather_objects(trainer: pl.Trainer, mine: T) -> list[T]:
    """Return the object of every process of a trainer, in the order of ranks; call it on all of them.

    Args:
        trainer: The trainer. One of a single process asks no other, also where an earlier trainer has left a group of
            several.
        mine: This process's object; it must be possible to pickle it.
    """
    if trainer.world_size == 1:
        return [mine]
    everyone = [mine] * trainer.world_size
    torch.distributed.all_gather_object(everyone, mine)
    return everyone
