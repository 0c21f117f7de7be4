"""Gathers objects of all processes."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed

T = TypeVar("T")


def gather_objects(mine: T) -> list[T]:
    """Return the object of every process, in the order of ranks; call it on all processes.

    Args:
        mine: This process's object; it must be possible to pickle it.
    """
    if not torch.distributed.is_initialized():
        return [mine]
    everyone = [mine] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    return everyone
