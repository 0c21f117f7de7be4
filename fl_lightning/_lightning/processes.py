"""What Lightning's processes share, and what is lost with them."""

from __future__ import annotations

import io
import pickle
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch.distributed
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
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
    buffer = io.BytesIO()
    torch.save(mine, buffer, pickle_protocol=pickle.DEFAULT_PROTOCOL)
    torch.distributed.all_gather_object(everyone, buffer.getvalue())

    def place(storage: Any, origin: str) -> Any:
        return storage if origin == "cpu" else default_restore_location(storage, str(device))

    return [torch.load(io.BytesIO(share), map_location=place, weights_only=False) for share in everyone]


def use_bare_module(trainer: pl.Trainer) -> None:
    """Take DDP's wrapper away.

    Processes have unequal numbers of batches, in training and in evaluation: the wrapper's exchange of gradients and
    buffers would wait forever. It would also leave a `forward` in the module, which could then not be stacked.
    """
    if isinstance(trainer.strategy, DDPStrategy):
        trainer.strategy.model = trainer.lightning_module


def ends_with_fit(trainer: pl.Trainer) -> bool:
    """Return whether Lightning trains in processes of their own, as ``"ddp_fork"`` does, and not in the user's."""
    return isinstance(trainer.strategy.launcher, _MultiProcessingLauncher)


def warn_of_lost_results(trainer: pl.Trainer) -> None:
    """Warn of the results that do not come back from such processes."""
    if ends_with_fit(trainer):
        rank_zero_warn(
            "With this strategy Lightning trains in processes that end with the fit. Weights, logged metrics and "
            "checkpoints come back. Values of callbacks and parts do not: `spent` of a privacy part stays 0, records "
            "such as `ClientMetrics.values` are empty, and a later evaluation knows no personal parameters. Read "
            'such values in a callback\'s `on_fit_end`, or give `strategy="ddp"`, with which they stay.'
        )
