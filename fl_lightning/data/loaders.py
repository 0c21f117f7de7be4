"""Loaders of a data module: for central training, and for evaluations."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader

from fl_lightning.data.batches import length, make_loader
from fl_lightning.data.federated_split import Stage
from fl_lightning.data.order import PooledOrder, evaluation_share

if TYPE_CHECKING:
    from fl_lightning.data.datamodule import FederatedDataModule


def central_loader(data: FederatedDataModule) -> DataLoader[Any]:
    """Return a loader of all training clients' samples together."""
    order = None
    if data.sampler is not None:
        draw = partial(data.pooled_order, range(data.num_clients))
        order = PooledOrder(int(data.client_sizes.sum()), draw)
    return make_loader(
        data.federated_samples.transformed("train", data.train_transform),
        data.batch_size,
        shuffle=data.shuffle and order is None,
        sampler=order,
        num_workers=data.num_workers,
        collate_fn=data.source_collate_fn,
        drop_last=data.drop_last,
    )


def evaluation_loader(data: FederatedDataModule, stage: Stage, *, shared: bool) -> DataLoader[Any] | list[Any]:
    """Return a loader of a set's samples, ordered by client; an empty list if there are none.

    Args:
        data: The data module.
        stage: The set.
        shared: Whether each process of the trainer gets a share of its own.
    """
    if not data.federated_split.of(stage):
        # Lightning warns of an empty list, which the line on clients has said already.
        warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")
        return []
    dataset = data.federated_samples.transformed(stage, data.eval_transform)
    batch_size = data.evaluation_batch_size(dataset)
    share = None
    if shared and data.trainer is not None:
        processes = data.trainer.world_size
        # Lightning raises an error for an empty share. So it may repeat samples if there are fewer than processes.
        if length(dataset) >= processes > 1:
            rank = data.trainer.global_rank
            share, batch_size = evaluation_share(dataset, batch_size, processes, rank, data.limit_evaluation)
    return make_loader(
        dataset,
        batch_size,
        shuffle=False,
        sampler=share,
        num_workers=data.num_workers,
        collate_fn=data.source_collate_fn,
    )


def warn_of_no_test(data: FederatedDataModule) -> None:
    """Warn if the trainer tests or predicts, and there are no test samples."""
    if data.federated_split.test or data.trainer is None:
        return
    if data.trainer.testing or data.trainer.predicting:
        rank_zero_warn("The data module has no test samples. Give it test samples, or a split that has some.")
