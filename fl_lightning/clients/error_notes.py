"""Adds to an error in a client's training which client it was, and the shapes and types of its batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.parts.messages import Task
from fl_lightning.representation import joined

_SHOWN = 6  # tensors of a batch


def note_client(error: Exception, task: Task, batch: Any) -> None:
    """Add the round, the client and the tensors of its batch to an error, for the end of its traceback.

    Args:
        error: The exception.
        task: The client's task.
        batch: The batch that was trained on; ``None`` if there was none.
    """
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)][:_SHOWN]
    note = f"In round {task.round + 1}, client {task.client}"
    if tensors:
        shapes = joined([str(tuple(tensor.shape)) for tensor in tensors])
        types = joined([str(tensor.dtype).removeprefix("torch.") for tensor in tensors])
        several = "s" * (len(tensors) > 1)
        note += f": batch of shape{several} {shapes}, type{several} {types}"
    error.add_note(f"{note}.")
