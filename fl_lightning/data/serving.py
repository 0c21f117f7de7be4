"""The batches that a data module serves: each client's own, and those of pooled sets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from fl_lightning.checks import quantity
from fl_lightning.data.batches import (
    Collate,
    Transform,
    TransformedDataset,
    client_batches,
    length,
    make_loader,
    number_of_batches,
    tensor_rows,
    tensors_of,
)
from fl_lightning.data.order import (
    ClientOrder,
    EvaluationShare,
    PooledOrder,
    drawn_by,
    drawn_together,
    shared_batch_size,
)
from fl_lightning.data.source import Source
from fl_lightning.data.tensor_bytes import fingerprint
from fl_lightning.data.view import FederationView, Stage

_EVALUATED_BYTES, _FEWEST_EVALUATED, _MOST_EVALUATED = 1 << 20, 256, 4096


class ServesBatches(FederationView):
    """The part of a data module that makes batches of samples.

    Attributes:
        shares_evaluation: Whether several processes share evaluation samples, each in one share. An aggregation
            callback sets it for a stage, and joins what they log; otherwise Lightning's own shares repeat samples.
        limit_evaluation: Returns how many of all batches the processes evaluate together; all if ``None``.
        trained_by: The class of the aggregation callback of the newest fit; ``None`` in central training.
    """

    batch_size: int | None
    eval_batch_size: int | None
    shuffle: bool
    drop_last: bool
    sampler: ClientOrder | None
    train_transform: Transform | None
    eval_transform: Transform | None
    num_workers: int
    trained_by: str | None = None
    shares_evaluation = False
    limit_evaluation: Callable[[int], float] | None = None
    _features: TensorDataset | None = None

    # ---- samples ----

    @property
    def source_collate_fn(self) -> Collate | None:
        """Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``."""
        return self._source.collate_fn

    @property
    def _dataset(self) -> Dataset[Any]:
        return self._source.dataset if self._features is None else self._features

    def _samples(self, stage: Stage, clients: Sequence[int] | None = None) -> Dataset[Any]:
        """Return the samples of a stage, before any transform.

        Args:
            stage: The stage.
            clients: Positions of training clients; ``None`` for the samples of the whole stage.
        """
        parts = self._parts(stage)
        chosen = list(parts.values()) if clients is None else [parts[self.client_ids[client]] for client in clients]
        indices = chosen[0] if len(chosen) == 1 else np.concatenate(chosen)
        return Subset(self._dataset, indices)  # type: ignore[arg-type]

    def _transformed(self, dataset: Dataset[Any], transform: Transform | None) -> Dataset[Any]:
        return dataset if transform is None or self.inputs_replaced else TransformedDataset(dataset, transform)

    def _tensors_of(self, source: Source) -> tuple[Tensor, ...]:
        """Return the tensors of all samples, inputs first."""
        tensors = tensors_of(source.dataset)
        if tensors is None:
            raise ValueError(
                "`standardize`, `impute`, `feature_noise`, poisons, replaced inputs and fingerprints need samples that "
                "are rows of tensors of the same shapes and types: a TensorDataset, or Subset of one. Give such data, "
                "or do it in `train_transform` and `eval_transform`."
            )
        return tensors

    # ---- replaced inputs ----

    @property
    def inputs_replaced(self) -> bool:
        """Whether batches hold features in place of inputs, such as those of a frozen prefix; none is transformed."""
        return self._features is not None

    def source_inputs(self) -> Tensor:
        """Return the inputs of all samples, shape (N, ...), as batches hold them unless replaced."""
        return self._tensors_of(self._source)[0]

    def replace_inputs(self, features: Tensor) -> None:
        """Serve ``features``, one row per source input, in place of the inputs until the stage ends."""
        self._features = TensorDataset(features, *self._tensors_of(self._source)[1:])

    def data_fingerprint(self) -> str:
        """Return a text that changes with the shape, type or content of the source's tensors."""
        return fingerprint(self._tensors_of(self._source))

    # ---- training clients ----

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return the training samples of the client at position ``client``, 0 to K-1."""
        return self._transformed(self._samples("train", [client]), self.train_transform)

    def client_order(self, client: int, generator: torch.Generator) -> Tensor:
        """Return the positions of one local epoch in the client's samples, as ``sampler`` or by chance, shape (n_k,).

        Raises:
            ValueError: If ``sampler`` returns others than n_k positions of the client's samples.
        """
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
        return self._batches(self._transformed(self._samples("train", clients), self.train_transform), order)

    def _batches(self, dataset: Dataset[Any], order: Tensor | None) -> Iterator[Any]:
        collate, drop_last = self.source_collate_fn, self.drop_last
        return client_batches(dataset, self.batch_size, None, False, collate, order=order, drop_last=drop_last)

    def num_client_batches(self, client: int) -> int:
        """Return the number of batches of one local epoch: ceil(n_k / B), or with ``drop_last`` max(1, floor(n_k / B)).

        Args:
            client: Position of the client, 0 to K-1.
        """
        return number_of_batches(int(self.client_sizes[client]), self.batch_size, self.drop_last)

    # ---- pooled sets ----

    def train_dataloader(self) -> DataLoader[Any]:
        """Return all training clients' samples together, for central training."""
        clients = range(len(self.client_sizes))
        if self.trainer is not None and self.trainer.training and self.trained_by is None:
            rank_zero_info(
                f"The trainer has no aggregation callback, so the samples of {quantity(len(clients), 'client')} are "
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
        return self._evaluation_loader("val", self.shares_evaluation)

    def test_dataloader(self) -> Any:
        """Return the test set, ordered by client; an empty list, with a warning, if there is none."""
        self._warn_of_no_test()
        return self._evaluation_loader("test", self.shares_evaluation)

    def predict_dataloader(self) -> Any:
        """Return the test set, as :meth:`test_dataloader`; Lightning shares it out over processes by itself."""
        self._warn_of_no_test()
        return self._evaluation_loader("test", shared=False)

    def _warn_of_no_test(self) -> None:
        if not self._parts("test") and self.trainer is not None and (self.trainer.testing or self.trainer.predicting):
            rank_zero_warn("The data module has no test samples. Give it test samples, or a split that has some.")

    def evaluation_batch_size(self, dataset: Dataset[Any]) -> int:
        """Return the number of samples of a batch of an evaluation, by the bytes of a sample if it is not given."""
        if self.eval_batch_size is not None:
            return self.eval_batch_size
        first = dataset.datasets[0] if isinstance(dataset, ConcatDataset) else dataset
        rows = tensor_rows(first)
        if rows is None:
            return _FEWEST_EVALUATED
        samples = _EVALUATED_BYTES // max(1, sum(tensor[:1].nbytes for tensor in rows[0]))
        power: int = 1 << max(0, samples.bit_length() - 1)
        return min(max(power, _FEWEST_EVALUATED), _MOST_EVALUATED)

    def _evaluation_loader(self, stage: Stage, shared: bool) -> DataLoader[Any] | list[Any]:
        if not self._parts(stage):  # Lightning warns of an empty list; the line on clients has said so
            warnings.filterwarnings("ignore", "Total length of `list` across ranks is zero")
            return []
        dataset = self._transformed(self._samples(stage), self.eval_transform)
        batch_size = self.evaluation_batch_size(dataset)
        share, samples = None, length(dataset)
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
