"""The batches that a data module serves: each client's own, and those of pooled sets."""

from __future__ import annotations

import math
import numbers
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypedDict

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fl_lightning.arguments import check_bool, check_count, check_function_of, check_size, got_number
from fl_lightning.data.batches import Collate, client_batches, make_loader, number_of_batches
from fl_lightning.data.order import (
    ClientOrder,
    EvaluationShare,
    PooledOrder,
    drawn_by,
    drawn_together,
    shared_batch_size,
)
from fl_lightning.data.transforms import Transform, TransformedDataset
from fl_lightning.representation import counted

Stage = Literal["train", "val", "test"]


class MoreLoadingOptions(TypedDict, total=False):
    """The rarer arguments of :class:`FederatedDataModule` that say how samples become batches."""

    drop_last: bool
    sampler: ClientOrder | None
    train_transform: Transform | None
    eval_transform: Transform | None
    num_workers: int


class LoadingOptions(MoreLoadingOptions, total=False):
    """The arguments of :class:`FederatedDataModule` that say how samples become batches."""

    batch_size: int | None
    eval_batch_size: int
    shuffle: bool


class ServesBatches(ABC):
    """The part of a data module that makes batches of samples.

    Attributes:
        shares_evaluation: Whether several processes share evaluation samples, each in one share. An aggregation
            callback sets it for a stage, and joins what they log; otherwise Lightning's own shares repeat samples.
        limit_evaluation: Returns how many of all batches the processes evaluate together; all if ``None``.
    """

    trainer: L.Trainer | None
    trained_by: str | None
    shares_evaluation = False
    limit_evaluation: Callable[[int], float] | None = None

    def _set_loading(
        self,
        batch_size: int | None = 32,
        eval_batch_size: int = 256,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: ClientOrder | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        num_workers: int = 0,
    ) -> None:
        """Check and keep the arguments."""
        if batch_size is not None:
            check_size("batch_size", batch_size, hint="None takes all of a client's samples at once.")
        check_size("eval_batch_size", eval_batch_size)
        check_count("num_workers", num_workers, minimum=0)
        check_bool("shuffle", shuffle)
        check_bool("drop_last", drop_last)
        if sampler is not None:
            check_function_of(
                "sampler",
                sampler,
                ("client", "dataset", "generator"),
                "It gets (client, dataset, generator) and returns one epoch's positions.",
            )
            if not shuffle:
                raise ValueError("`sampler` draws the order of samples, so `shuffle=False` has no effect beside it.")
        for name, transform in (("train_transform", train_transform), ("eval_transform", eval_transform)):
            if transform is not None:
                check_function_of(name, transform, ("input",), "It gets a sample's input and returns another.")
        self.batch_size = None if batch_size is None else int(batch_size)
        self.eval_batch_size = int(eval_batch_size)
        self.shuffle, self.drop_last, self.sampler = bool(shuffle), bool(drop_last), sampler
        self.train_transform, self.eval_transform = train_transform, eval_transform
        self.num_workers = int(num_workers)

    # ---- what a data module defines ----

    @property
    @abstractmethod
    def client_sizes(self) -> np.ndarray:
        """Number of samples of each training client, shape (K,)."""

    @property
    @abstractmethod
    def source_collate_fn(self) -> Collate | None:
        """Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``."""

    @property
    @abstractmethod
    def inputs_replaced(self) -> bool:
        """Whether batches hold features in place of inputs; these are not transformed."""

    @abstractmethod
    def _samples(self, stage: Stage, clients: Sequence[int] | None = None) -> Dataset[Any]:
        """Return the samples of a stage, before any transform.

        Args:
            stage: The stage.
            clients: Positions of training clients; ``None`` for the samples of the whole stage.
        """

    @abstractmethod
    def _has(self, stage: Stage) -> bool:
        """Return whether there are samples of a stage."""

    # ---- training clients ----

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training samples of the client at position ``client``, 0 to K-1.

        Raises:
            ValueError: If there is no such client.
        """
        self._check_client(client)
        return self._transformed(self._samples("train", [client]), self.train_transform)

    def _check_client(self, client: int) -> None:
        number = len(self.client_sizes)
        is_whole = type(client) is int or isinstance(client, numbers.Integral)  # the first question is far cheaper
        if not is_whole or not 0 <= client < number:
            raise ValueError(
                f"`client` must be from 0 to {number - 1}, the position of a training client, got {got_number(client)}."
            )

    def pooled_dataset(self, clients: Sequence[int]) -> Dataset[Any]:
        """Return the training samples of the clients at these positions together."""
        return self._transformed(self._samples("train", clients), self.train_transform)

    def _transformed(self, dataset: Dataset[Any], transform: Transform | None) -> Dataset[Any]:
        return dataset if transform is None or self.inputs_replaced else TransformedDataset(dataset, transform)

    def client_order(self, client: int, generator: torch.Generator) -> Tensor:
        """Return the positions of one local epoch in the client's samples, as ``sampler`` or by chance, shape (n_k,).

        Raises:
            TypeError: If ``sampler`` returns no whole numbers.
            ValueError: If it returns others than n_k positions of the client's samples, or there is no such client.
        """
        self._check_client(client)
        if self.sampler is None:
            return torch.randperm(int(self.client_sizes[client]), generator=generator)
        return drawn_by(self.sampler, client, self._samples("train", [client]), generator)

    def pooled_order(self, clients: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return the positions of one epoch in the pooled samples of some clients, shuffled, shape (n,)."""
        if self.sampler is None:
            return torch.randperm(int(self.client_sizes[list(clients)].sum()), generator=generator)
        return drawn_together([self.client_order(client, generator) for client in clients], generator)

    def client_batches(self, client: int, *, generator: torch.Generator, shuffle: bool | None = None) -> Iterator[Any]:
        """Yield one local epoch of the client at position ``client``.

        Args:
            client: Position of the client, 0 to K-1.
            generator: CPU generator of the order.
            shuffle: Whether to draw a new order; as the data module's ``shuffle`` if ``None``.
        """
        order = self.client_order(client, generator) if (self.shuffle if shuffle is None else shuffle) else None
        return self._batches(self.client_dataset(client), order)

    def pooled_batches(self, clients: Sequence[int], *, generator: torch.Generator) -> Iterator[Any]:
        """Yield one epoch of the union of some clients' samples; for arguments see :meth:`client_batches`."""
        order = self.pooled_order(clients, generator) if self.shuffle else None
        return self._batches(self.pooled_dataset(clients), order)

    def _batches(self, dataset: Dataset[Any], order: Tensor | None) -> Iterator[Any]:
        collate, drop_last = self.source_collate_fn, self.drop_last
        return client_batches(dataset, self.batch_size, None, False, collate, order=order, drop_last=drop_last)

    def num_client_batches(self, client: int) -> int:
        """Return the number of batches of one local epoch: ceil(n_k / B), or with ``drop_last`` max(1, floor(n_k / B)).

        Args:
            client: Position of the client, 0 to K-1.

        Raises:
            ValueError: If there is no such client.
        """
        self._check_client(client)
        return number_of_batches(int(self.client_sizes[client]), self.batch_size, self.drop_last)

    # ---- pooled sets ----

    def train_dataloader(self) -> DataLoader[Any]:
        """Return all training clients' samples together, for central training."""
        clients = range(len(self.client_sizes))
        if self.trainer is not None and self.trainer.training and self.trained_by is None:
            rank_zero_info(
                f"The trainer has no aggregation callback, so the samples of {counted(len(clients), 'client')} are "
                "trained on together, centrally. For federated learning give it one, such as FedAvg()."
            )
        order = None
        if self.sampler is not None:
            order = PooledOrder(int(self.client_sizes.sum()), partial(self.pooled_order, clients))
        return make_loader(
            self._transformed(self._samples("train"), self.train_transform),
            self.batch_size,
            shuffle=self.shuffle and order is None,
            sampler=order,
            num_workers=self.num_workers,
            collate_fn=self.source_collate_fn,
            drop_last=self.drop_last,
        )

    def val_dataloader(self) -> Any:
        """Return the validation set, ordered by client; an empty list if there is none."""
        return self._evaluation_loader("val", self.shares_evaluation) if self._has("val") else _no_loader()

    def test_dataloader(self) -> Any:
        """Return the test set, ordered by client; an empty list, with a warning, if there is none."""
        if self._has("test"):
            return self._evaluation_loader("test", self.shares_evaluation)
        if self.trainer is not None and self.trainer.testing:
            rank_zero_warn("The data module has no test samples. Give it test samples, or a split that has some.")
        return _no_loader()

    def predict_dataloader(self) -> Any:
        """Return the test set; Lightning shares it out over processes by itself."""
        return self._evaluation_loader("test", shared=False) if self._has("test") else _no_loader()

    def _evaluation_loader(self, stage: Stage, shared: bool) -> DataLoader[Any]:
        dataset, batch_size = self._transformed(self._samples(stage), self.eval_transform), self.eval_batch_size
        share, samples = None, len(dataset)  # type: ignore[arg-type]
        # Lightning refuses an empty share, so that it repeats samples where there are fewer than processes
        if shared and self.trainer is not None and samples >= self.trainer.world_size > 1:
            processes = self.trainer.world_size
            if self.limit_evaluation is not None:
                kept = self.limit_evaluation(math.ceil(samples / batch_size)) * batch_size
                samples = max(min(samples, int(kept)), processes)
            share = EvaluationShare(dataset, processes, self.trainer.global_rank, samples)
            batch_size = shared_batch_size(samples, processes, batch_size)
        return make_loader(
            dataset,
            batch_size,
            shuffle=False,
            sampler=share,
            num_workers=self.num_workers,
            collate_fn=self.source_collate_fn,
        )


def _no_loader() -> list[Any]:
    """Return an empty list, and silence Lightning's warning of it: the line on clients has said so."""
    warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")
    return []
