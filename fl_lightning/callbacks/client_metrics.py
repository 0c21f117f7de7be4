"""A metric per client, and its mean over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning._lightning.evaluation.evaluation_loops import evaluates_data_module, size_of_batch
from fl_lightning._lightning.evaluation.predictions import joined, read_batch
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.processes import gather_objects
from fl_lightning.callbacks.client_models import (
    NoClientModelsError,
    PersonalModels,
    personal_models,
    personal_parts,
    state_in,
)
from fl_lightning.callbacks.personal_values import (
    check_monitors,
    check_scores,
    scores_of_clients,
    warn_of_clients_without_values,
)
from fl_lightning.data import FederatedDataModule
from fl_lightning.metrics import accuracy
from fl_lightning.settings import check_arguments

Metric = Callable[[Tensor, Tensor], Tensor]
_Stage = Literal["val", "test"]


class ClientMetrics(Callback):
    """Evaluates every validation and test client by itself (as in Xue et al. 2021).

    Logs ``val_acc_clients``, the mean over clients of the metric of the model that all share, and with the endings
    ``_weighted`` the mean weighted by the clients' samples, ``_std``, ``_min``, ``_max`` and ``_lowest10``, the mean
    of the lowest tenth (of one client at least). The same for ``test``. Clients whose metric is NaN or infinite are
    left out, and ``val_acc_clients_left_out`` counts them. ``values`` holds the last metric of every client. Nothing is
    logged if the evaluation set belongs to no client; a warning says so.
    Predictions and targets are those of the data module's ``outputs_and_targets``: taken from what ``validation_step``
    or ``test_step`` returned, if that is a dict with ``"preds"`` (n, C) and ``"target"`` (n,), one row for each sample
    of the batch; otherwise the module is called on the batch's first element, and the last is the target.

    Where clients have models of their own (:class:`~fl_lightning.PersonalParameters`, :class:`~fl_lightning.Ditto`, and
    so on), ``val_acc_personal`` and so on tell the same of each client's own model on its own samples, and ``values``
    holds these. The module is then also called on the batch's inputs, a tensor. A client that has not trained yet is
    evaluated with the model that all share, which is also what ``val_acc`` and checkpoints see.
    These scores are of the models of the round that is evaluated: a client that last trained in an earlier round has
    its model of then, as the methods have it. Where clients fine-tune in some rounds
    (:class:`~fl_lightning.FedAvgFineTuned`, ``every``), nothing is logged of their models in other rounds; a warning
    says so in ``trainer.validate`` and ``trainer.test``.

    Args:
        metric: Takes predictions and targets of one client, in the types that the step returned (half precision as
            float32), and returns a number; NaN leaves the client out. The default is
            :func:`~fl_lightning.metrics.accuracy`, of scores (n, C) and classes (n,), and of others that it knows.
            The AUROC of torchmetrics is 0 for samples of one class, :func:`fl_lightning.metrics.auroc` is NaN.
        name: Name of the metric in the logs.
        pooled: Whether to log the metric of all clients' samples together, too, with the ending ``_pooled``: an AUROC
            or C-index of all samples is not the mean of the clients'.
        always_personal: Whether ``val_acc_personal`` and so on are also logged where clients have no models of their
            own: of the model that they share. Methods with and without such models then have a score in common.

    Raises:
        TypeError: If an argument has the wrong type, such as a name for ``metric``; in an evaluation, if the step
            returned no scores, and the module has no ``forward`` or a batch has no inputs and targets; with personal
            parameters, if a batch's inputs are no tensor.
        ValueError: If ``name`` is empty; in an evaluation, if there is not one row of predictions and of targets for
            each sample, or predictions and targets do not fit, or a user-defined loader does not go through the
            whole evaluation set in order; with personal parameters, if the step returned other scores than the module
            does for the batch's inputs.

    Attributes:
        values: For ``"val"`` and ``"test"``, the last metric of each client, by client id: of its own model, where
            ``val_acc_personal`` is logged.
        shared_values: The same with the model that all clients share.
        own_values: The same with clients' own models; a stage without a score of these is missing.

    Example:
        >>> metrics = ClientMetrics()
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[FedAvg(2), metrics])
        >>> trainer.fit(module, datamodule=data)
        >>> metrics.values["val"]  # the accuracy of each client, by its number
    """

    def __init__(
        self, metric: Metric = accuracy, name: str = "acc", pooled: bool = False, *, always_personal: bool = False
    ) -> None:
        self.metric = metric
        self.name = name
        self.pooled = pooled
        self.always_personal = always_personal
        check_arguments(self)
        self.values: dict[str, dict[int, float]] = {}
        self.shared_values: dict[str, dict[int, float]] = {}
        self.own_values: dict[str, dict[int, float]] = {}
        #: Predictions and targets of each batch; if clients have own models, the predictions of these as well.
        self._seen: list[tuple[Tensor, ...]] = []
        #: Samples of these batches.
        self._num_seen = 0
        #: The client of each sample of the evaluation set.
        self._clients: np.ndarray | None = None
        self._own: PersonalModels | None = None
        #: The algorithm's state in a checkpoint that is evaluated.
        self._loaded: dict[str, Any] | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Forget a checkpoint that was evaluated before.

        Raises:
            ValueError: If two of them have one name and different metrics: the loggers would get the mean of both; or
                another callback monitors a score of clients' own models in rounds that have none.
        """
        for other in fit_trainer(trainer).callbacks:
            if isinstance(other, ClientMetrics) and other.metric is not self.metric and other.name == self.name:
                raise ValueError(
                    f"Two callbacks ClientMetrics have the `name` {self.name!r} and different metrics, and the loggers "
                    'would get the mean of the two. Give one of them another name, such as `name="other"`.'
                )
        self._loaded = None
        if stage == "fit":
            check_monitors(trainer, f"val_{self.name}_personal", self.always_personal)
            warn_of_clients_without_values(trainer, self)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take the clients' models of a checkpoint that is evaluated; a fit takes them itself."""
        if trainer.state.fn != "fit":
            self._loaded = state_in(trainer, checkpoint)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget earlier predictions, and find the client of each sample."""
        self._seen = []
        self._num_seen = 0
        self._own = None
        if not trainer.sanity_checking:
            try:
                self._own = personal_models(trainer, self._loaded)
            except NoClientModelsError as error:
                # The rounds of a fit in which none are made are known beforehand.
                if trainer.state.fn != "fit":
                    rank_zero_warn(f"ClientMetrics scores no models of single clients: {error.reason}")
        self._clients = None
        if evaluates_data_module(trainer):
            self._clients = _clients_of(trainer, _stage(trainer))
        if self._clients is None:
            samples = "test" if trainer.testing else "validation"
            rank_zero_warn(
                f"ClientMetrics logs nothing: the {samples} samples belong to no client. Use a split that gives them "
                "to clients, ClientSplit or WithinClientSplit, or log the metric of all samples in the module."
            )

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the batch's predictions."""
        clients = self._clients
        if clients is None:
            return
        size = size_of_batch(trainer, batch_idx, len(clients), self)
        preds, target = read_batch(trainer, pl_module, batch, outputs)
        _check_rows(size, preds, target)
        seen: tuple[Tensor, ...] = (preds, target)
        if not self._seen and personal_parts(trainer):
            check_scores(trainer, pl_module, batch, outputs)
        if self._own is not None:
            places = _places_of(trainer.global_rank, trainer.world_size, self._num_seen, self._num_seen + size)
            # Behind the last sample are those that pad a process's share; they are left out later.
            places = np.minimum(places, len(clients) - 1)
            owners = torch.from_numpy(clients[places])
            own_preds, _ = scores_of_clients(trainer, pl_module, batch, outputs, owners, self._own)
            seen = (preds, target, own_preds)
        self._seen.append(seen)
        self._num_seen += size

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the mean over clients."""
        self._own = None
        if self._clients is None or not self._seen or trainer.sanity_checking:
            return
        stage = _stage(trainer)
        self.own_values.pop(stage, None)
        batches = self._of_all_processes(trainer, self._clients)
        # Which of the tensors of a batch are scores: those of the clients' own models are behind the targets.
        columns = {"clients": 0}
        _, first_tensors = batches[0]
        if len(first_tensors) > 2:
            columns["personal"] = 2
        elif self.always_personal and not personal_parts(trainer):
            columns["personal"] = 0
        if "personal" not in columns:
            # Callbacks would see the scores of an earlier round.
            prefix = f"{stage}_{self.name}_personal"
            outdated = [name for name in trainer.callback_metrics if name.startswith(prefix)]
            for name in outdated:
                del trainer.callback_metrics[name]
        owners = np.concatenate([of_batch for of_batch, _ in batches])
        _, counts = np.unique(owners, return_counts=True)
        # In ascending order of clients, as their metrics below.
        sizes = counts.astype(np.float64)
        log: dict[str, float] = {}
        for whose, column in columns.items():
            key = f"{stage}_{self.name}_{whose}"
            pieces = [(of_batch, tensors[column], tensors[1]) for of_batch, tensors in batches]
            values: dict[int, float] = {}
            for client, (preds, target) in _of_clients(pieces).items():
                values[client] = score_of(self, client, preds, target)
            log |= _summary(key, np.array([*values.values()]), sizes)
            if self.pooled:
                all_preds, all_targets = joined([(preds, target) for _, preds, target in pieces])
                log[f"{key}_pooled"] = float(self.metric(all_preds, all_targets))
            self.values[stage] = values
            if whose == "clients":
                self.shared_values[stage] = values
            elif column != columns["clients"]:
                self.own_values[stage] = values
        pl_module.log_dict(log, batch_size=1, sync_dist=trainer.world_size > 1)

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end

    def _of_all_processes(self, trainer: pl.Trainer, clients: np.ndarray) -> list[tuple[np.ndarray, list[Tensor]]]:
        """Return the clients of each batch's samples, and what was seen of these, of all processes."""
        mine = []
        for batch in self._seen:
            mine.append([_on_cpu(tensor) for tensor in batch])
        batches = []
        for rank, of_process in enumerate(gather_objects(trainer, mine)):
            begin = 0
            for tensors in of_process:
                end = begin + len(tensors[0])
                places = _places_of(rank, trainer.world_size, begin, end)
                # A distributed sampler pads the end of the set.
                is_real = places < len(clients)
                owners = clients[places[is_real]]
                rows = torch.from_numpy(is_real)
                batches.append((owners, [tensor[rows] for tensor in tensors]))
                begin = end
        return batches


def _on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor for a metric: not all functions compute with half precision on the CPU."""
    tensor = tensor.cpu()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor


def _of_clients(batches: Sequence[tuple[np.ndarray, Tensor, Tensor]]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return each client's predictions and targets, in ascending order of clients.

    Args:
        batches: The client of each sample of a batch, and its predictions and targets.
    """
    pieces: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for owners, preds, target in batches:
        for client, (own_preds, own_target) in rows_of_clients(owners, preds, target):
            pieces.setdefault(client, []).append((own_preds, own_target))
    return {client: joined(pieces[client]) for client in sorted(pieces)}


def _summary(key: str, values: np.ndarray, sizes: np.ndarray) -> dict[str, float]:
    """Return what is logged of the clients' metrics, shape ``(K,)``, and their numbers of samples."""
    is_known = np.isfinite(values)
    found = {}
    if not is_known.all():
        found[f"{key}_left_out"] = np.sum(~is_known)
    if is_known.any():
        values = values[is_known]
        sizes = sizes[is_known]
        num_lowest = max(1, len(values) // 10)
        found[key] = values.mean()
        found[f"{key}_std"] = values.std()
        found[f"{key}_min"] = values.min()
        found[f"{key}_max"] = values.max()
        found[f"{key}_lowest10"] = np.sort(values)[:num_lowest].mean()
        found[f"{key}_weighted"] = np.average(values, weights=sizes)
    return {name: float(value) for name, value in found.items()}


def rows_of_clients(owners: np.ndarray, *tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Yield each client, in ascending order, and its rows of the tensors, in their order.

    Args:
        owners: The client of each row, shape (n,).
        tensors: Tensors of n rows.
    """
    clients, sizes = np.unique(owners, return_counts=True)
    order = torch.from_numpy(np.argsort(owners, kind="stable"))
    ends = np.cumsum(sizes)
    sorted_tensors = [tensor[order] for tensor in tensors]
    for client, begin, end in zip(clients.tolist(), ends - sizes, ends, strict=True):
        yield client, tuple(tensor[begin:end] for tensor in sorted_tensors)


def score_of(callback: Any, client: int, preds: Tensor, target: Tensor) -> float:
    """Return what a callback's metric finds for one client.

    Args:
        callback: Has the metric; errors name its class.
        client: The client.
        preds: The client's predictions, one row for each sample.
        target: Their targets.
    """
    try:
        return float(callback.metric(preds, target))
    except Exception as error:
        error.add_note(f"This is the `metric` of {type(callback).__name__} for the {len(target)} samples of {client=}.")
        raise


def _check_rows(size: int, preds: Tensor, target: Tensor) -> None:
    rows_of_preds = _rows(preds)
    rows_of_target = _rows(target)
    if rows_of_preds != size or rows_of_target != size:
        raise ValueError(
            f"ClientMetrics needs one row of predictions and of targets for each of a batch's {size} samples, in their "
            f"order, got {rows_of_preds} and {rows_of_target} rows. Give samples of many labels whole, such as "
            "(n, T, C) and (n, T), with -100 for labels that do not count."
        )


def _rows(tensor: Tensor) -> int:
    """Return the number of rows; a scalar has none."""
    return len(tensor) if tensor.ndim > 0 else 0


def _places_of(rank: int, num_ranks: int, begin: int, end: int) -> np.ndarray:
    """Return the places in the evaluation set of a process's samples from its ``begin``-th to before its ``end``-th.

    A distributed sampler without shuffling gives process r the samples r, r + R, r + 2R, ... and pads the end.
    """
    return rank + np.arange(begin, end) * num_ranks


def _stage(trainer: pl.Trainer) -> _Stage:
    return "test" if trainer.testing else "val"


def _clients_of(trainer: pl.Trainer, stage: _Stage) -> np.ndarray | None:
    """Return the client of each sample; ``None`` if the evaluation set belongs to no client."""
    # A trainer that was given loaders alone has no such attribute.
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        return None
    return data.eval_client_ids(stage)
