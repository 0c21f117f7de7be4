"""Which samples of an evaluation set are in which batch."""

from __future__ import annotations

import lightning.pytorch as pl
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler


def evaluates_data_module(trainer: pl.Trainer) -> bool:
    """Return whether the samples that are evaluated are those of the trainer's data module, not loaders of a user's."""
    return trainer._evaluation_loop._data_source.instance is getattr(trainer, "datamodule", None)


def size_of_batch(trainer: pl.Trainer, batch_idx: int, samples: int, owner: object) -> int:
    """Return the number of samples of a process's batch.

    Args:
        trainer: The trainer, in an evaluation.
        batch_idx: The number of the batch.
        samples: Number of samples of the evaluation set.
        owner: The callback that needs the samples in order, for messages.

    Raises:
        ValueError: If a loader of a user's own does not go through the evaluation set in order, once.
    """
    combined = trainer._evaluation_loop._combined_loader
    loaders = [] if combined is None else combined.flattened
    loader = loaders[0] if len(loaders) == 1 else None
    if not isinstance(loader, DataLoader) or not _is_in_order(loader) or len(loader.dataset) != samples:  # type: ignore[arg-type]
        hook = "test_dataloader" if trainer.testing else "val_dataloader"
        raise ValueError(
            f"{type(owner).__name__} knows the client of each sample by its place in the evaluation set of {samples} "
            f"samples. `{hook}` of the data module must return one DataLoader that goes through the whole set in "
            f"order, got {_named(loaders)}. Leave `{hook}` as it is, or make a DataLoader without `shuffle`, `sampler` "
            "and `batch_sampler` of `super()." + hook + "().dataset`."
        )
    assert loader.batch_size is not None
    return min(loader.batch_size, len(loader.sampler) - batch_idx * loader.batch_size)  # type: ignore[arg-type]


def _is_in_order(loader: DataLoader[object]) -> bool:
    sampler = loader.sampler
    is_in_order = type(sampler) is SequentialSampler or (
        isinstance(sampler, DistributedSampler) and not sampler.shuffle
    )
    return is_in_order and type(loader.batch_sampler) is BatchSampler


def _named(loaders: list[object]) -> str:
    if len(loaders) != 1:
        return f"{len(loaders)} loaders"
    if not isinstance(loader := loaders[0], DataLoader):
        return f"a {type(loader).__name__}"
    if _is_in_order(loader):
        return f"one of a set of {len(loader.dataset)} samples"  # type: ignore[arg-type]
    return f"one with a {type(loader.sampler).__name__} and a {type(loader.batch_sampler).__name__}"
