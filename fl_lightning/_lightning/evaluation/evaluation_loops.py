"""Evaluation that logs numbers of all samples, however many processes share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Self

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.trainer.connectors.data_connector import _parse_num_batches
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from fl_lightning._lightning.evaluation.predictions import preserved_modes
from fl_lightning._lightning.logs.client_log import join_results
from fl_lightning._lightning.processes import gather_objects, use_bare_module
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.order import EvaluationShare


class FederatedEvaluation(_EvaluationLoop):
    """Lightning's evaluation loop; broken off, it leaves every submodule in the mode that it had.

    Attributes:
        around: Makes the context of an evaluation, for the device.
    """

    around: Callable[[torch.device], AbstractContextManager[object]] = nullcontext

    @classmethod
    def take_over(cls, stock: _EvaluationLoop) -> Self:
        """Return a loop with the settings, data source, results and progress of ``stock``."""
        loop = cls.__new__(cls)
        loop.__dict__.update(stock.__dict__)
        return loop

    def run(self) -> list[Mapping[str, float]]:
        """Evaluate."""
        with preserved_modes(self.trainer.lightning_module), self.around(self.trainer.strategy.root_device):
            scores: list[Mapping[str, float]] = super().run()
        return scores


class SharedEvaluation(FederatedEvaluation):
    """Lightning's evaluation loop, which joins the logged numbers of all processes, whatever ``sync_dist`` says.

    Lightning weights the processes' means by the mean number of their samples, which it rounds down: with shares of 3
    and 2 samples it divides by 2 instead of 2.5. A limit of batches counts those of all samples, not of one process.
    """

    def run(self) -> list[Mapping[str, float]]:
        """Evaluate; the check before the first round, too, takes the bare module."""
        use_bare_module(self.trainer)
        return super().run()

    def setup_data(self) -> None:
        """Let the data module apply the limit of batches to all samples, before they are shared out."""
        trainer = self.trainer
        data = getattr(trainer, "datamodule", None)
        before = self._max_batches
        name = f"limit_{self._stage.dataloader_prefix}_batches"
        limit = getattr(trainer, name)
        if limit == 0 or not isinstance(data, FederatedDataModule) or not data.shares_evaluation:
            super().setup_data()
            return
        limited = partial(_parse_num_batches, self._stage, limit_batches=limit)
        data.limit_evaluation = limited
        setattr(trainer, name, 1.0)
        try:
            super().setup_data()
        finally:
            setattr(trainer, name, limit)
            data.limit_evaluation = None
        if self._combined_loader is None or self._max_batches is before:
            return
        # A loader that the data module has not shared out is limited as in Lightning.
        max_batches = []
        for loader, number in zip(self._combined_loader.flattened, self._max_batches, strict=True):
            is_shared = isinstance(getattr(loader, "sampler", None), EvaluationShare)
            max_batches.append(number if is_shared else limited(number))
        self._max_batches = max_batches

    def reset(self) -> None:
        """Prepare an evaluation, and find out whether all processes have batches of each loader."""
        super().reset()
        self._joins = self.num_dataloaders <= 1 or all(gather_objects(self.trainer, all(self.max_batches)))

    def _store_dataloader_outputs(self) -> None:
        # Every process comes here once for each loader, unless one is empty in some of them.
        if self._joins:
            gather = partial(gather_objects, self.trainer)
            join_results(self._results, self.trainer.lightning_module, gather, self.trainer.strategy.reduce)
        super()._store_dataloader_outputs()


def prepare_evaluation(trainer: pl.Trainer, around: Callable[[torch.device], AbstractContextManager[object]]) -> None:
    """Let several processes share the samples of federated data, none counted twice.

    Args:
        trainer: The trainer.
        around: Makes the context of ``validate`` and ``test``, for the device.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        return
    data.shares_evaluation = trainer.world_size > 1
    kind = SharedEvaluation if data.shares_evaluation else FederatedEvaluation
    epoch_loop = trainer.fit_loop.epoch_loop
    for owner, name in ((trainer, "validate_loop"), (trainer, "test_loop"), (epoch_loop, "val_loop")):
        stock = getattr(owner, name)
        if type(stock) is not kind:
            setattr(owner, name, kind.take_over(stock))
    for loop in (trainer.validate_loop, trainer.test_loop):
        assert isinstance(loop, FederatedEvaluation)
        loop.around = around


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
            f"order, got {loaders!r}. Leave `{hook}` as it is, or make a DataLoader without `shuffle`, `sampler` "
            "and `batch_sampler` of `super()." + hook + "().dataset`."
        )
    assert loader.batch_size is not None
    return min(loader.batch_size, len(loader.sampler) - batch_idx * loader.batch_size)  # type: ignore[arg-type]


def _is_in_order(loader: DataLoader[object]) -> bool:
    if type(loader.batch_sampler) is not BatchSampler:
        return False
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        return not sampler.shuffle
    return type(sampler) is SequentialSampler
