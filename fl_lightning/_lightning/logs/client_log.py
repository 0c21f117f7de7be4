"""``self.log`` inside clients: Lightning's own on the first call of a fit, then straight to its running sums.

For each ``self.log("train_loss", loss)`` in ``training_step`` Lightning checks all arguments, and finds the metric
``training_step.train_loss`` of its results. Here the second call of a fit adds ``loss`` times the batch's size to the
sum that this metric holds, and the size to its count, as Lightning would have done in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed
from lightning.pytorch.trainer.connectors.logger_connector.result import (
    _Metadata,
    _ResultCollection,
    _ResultMetric,
)
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.fit_trainer import fit_trainer


class _Known:
    """A metric that ``self.log`` has registered with Lightning.

    Args:
        options: The options with which it was logged, but for the batch's size.
        metric: Lightning's metric.
    """

    def __init__(self, options: dict[str, Any], metric: _ResultMetric) -> None:
        meta = metric.meta
        self.options = options
        self.metric = metric
        #: Whether it is the mean of an epoch alone: two sums, of values and of batches' sizes.
        self.is_running_mean = metric.is_tensor and meta.is_mean_reduction and meta.on_epoch and not meta.on_step


class ClientLog:
    """Stands in for ``module.log`` while clients train.

    The first call with a name goes through Lightning, which validates it and registers the metric. Further calls with
    the same arguments update that metric as Lightning does. Values are never reduced over processes inside a round,
    where processes do unequal numbers of steps; :func:`join_results` does it once at the round's end. A module that
    overrides ``log`` keeps it.
    """

    def __init__(self, module: pl.LightningModule, results: _ResultCollection) -> None:
        self._module = module
        self._results = results
        #: What each (hook, name) that has been logged was logged with.
        self._known: dict[tuple[str | None, str], _Known] = {}
        #: Hooks that logged in this round.
        self._entered: set[str | None] = set()

    def install(self) -> None:
        """Shadow ``module.log``, and the callbacks' references to it, for a round."""
        registered = {id(metric) for metric in self._results.values()}
        self._known = {key: known for key, known in self._known.items() if id(known.metric) in registered}
        self._entered.clear()
        self._results.__dict__["log"] = self._log_here
        if not has_own_log(self._module):
            self._module.__dict__["log"] = self
            self._point_callbacks_to(self)

    def remove(self) -> None:
        """Give the module its own ``log`` back."""
        self._results.__dict__.pop("log", None)
        # A hook may have set another one.
        if self._module.__dict__.get("log") is self:
            del self._module.__dict__["log"]
            self._point_callbacks_to(self._module.log)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the module that is made inside a round logs as the copy, and does not copy the trainer.
        return getattr, (self._module, "log")

    def _point_callbacks_to(self, log: Callable[..., None]) -> None:
        for callback in fit_trainer(self._module.trainer).callbacks:
            callback.log = log  # type: ignore[attr-defined]  # as Lightning sets it

    def __call__(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log ``value`` as ``LightningModule.log`` does; same arguments."""
        # A function that is never compiled takes longer to call than all that is done here.
        if torch.compiler.is_compiling():
            self._log_uncompiled(name, value, *args, **kwargs)
        else:
            self._log(name, value, *args, **kwargs)

    # It counts, and a compiled `training_step` would be compiled again for each number.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _log_uncompiled(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self._log(name, value, *args, **kwargs)

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        fx = self._module._current_fx_name
        known = self._known.get((fx, name))
        if fx not in self._entered:
            self._entered.add(fx)
            if known is not None:
                _enter_hook(self._module.trainer, fx)
        options = {key: option for key, option in kwargs.items() if key != "batch_size"}
        if known is not None and not args and self._update(known, options, value, kwargs.get("batch_size")):
            return
        type(self._module).log(self._module, name, value, *args, **kwargs)
        registered: _ResultMetric | None = self._results.get(f"{fx}.{name}")
        if registered is not None and not args:
            self._known[fx, name] = _Known(options, registered)

    def _log_here(self, *args: Any, **kwargs: Any) -> None:
        _ResultCollection.log(self._results, *args, **{**kwargs, "sync_dist": False})

    def _update(self, known: _Known, options: dict[str, Any], value: Any, batch_size: Any) -> bool:
        """Update a metric without the bookkeeping of torchmetrics; return False if Lightning has to check the call."""
        if options != known.options:
            return False
        metric = known.metric
        weight = 1
        if metric.is_tensor:
            kept: Tensor = metric.value
            if type(value) is float or type(value) is int:
                value = torch.tensor(value, dtype=kept.dtype, device=kept.device)
            if not isinstance(value, Tensor) or value.dim() or value.device != kept.device:
                return False
            if value.requires_grad:
                value = value.detach()
            if metric.meta.on_epoch and metric.meta.is_mean_reduction:
                weight = self._batch_size() if batch_size is None else batch_size
        if known.is_running_mean and value.dtype is metric.value.dtype:
            # What Lightning's `update` does with it. Metrics set attributes by a function of their own.
            attributes = vars(metric)
            attributes["value"] = attributes["value"] + value * weight
            attributes["cumulated_batch_size"] = attributes["cumulated_batch_size"] + weight
        else:
            _ResultMetric.update(metric, value, weight)
        _note_update(metric)
        return True

    def _batch_size(self) -> int:
        results = self._results
        if results.batch_size is None:
            results.batch_size = _size_of(results.batch)
        return results.batch_size


def _size_of(batch: Any) -> int:
    """Return the number of samples that Lightning sees in a batch; its search takes as long as to log a value."""
    if batch is None:
        return 1
    if type(batch) in (list, tuple) and batch and all(isinstance(part, Tensor) and part.dim() for part in batch):
        size = len(batch[0])
        if all(len(part) == size for part in batch):
            return size
    return extract_batch_size(batch)


@contextmanager
def unnoticed(module: pl.LightningModule) -> Iterator[None]:
    """Drop what a module logs, and leave its torchmetrics objects as they are."""
    attributes = module.__dict__
    own_log = attributes.get("log")
    states = [(metric, _metric_state(metric)) for metric in module.modules() if isinstance(metric, Metric)]
    attributes["log"] = _drop
    try:
        yield
    finally:
        del attributes["log"]
        if own_log is not None:
            attributes["log"] = own_log
        for metric, state in states:
            metric.__dict__.update(state)


def _metric_state(metric: Metric) -> dict[str, Any]:
    state = metric._copy_state_dict()
    for name in ("_update_count", "_computed", "_forward_cache", "_is_synced"):
        state[name] = vars(metric)[name]
    return state


def _note_update(metric: _ResultMetric) -> None:
    """Do what torchmetrics does around an update."""
    attributes = vars(metric)
    attributes["_computed"] = None
    attributes["has_reset"] = False
    attributes["_update_count"] += 1


def _drop(*args: Any, **kwargs: Any) -> None:
    """Take what ``self.log`` is given."""


def has_own_log(module: pl.LightningModule) -> bool:
    """Whether a module has a ``log`` that is not Lightning's: of its class, or set on the module itself."""
    log = module.log
    return not isinstance(log, ClientLog) and getattr(log, "__func__", None) is not pl.LightningModule.log


def _enter_hook(trainer: pl.Trainer, fx: str | None) -> None:
    """Tell Lightning, which would empty what a hook has logged in this round when it logs a new name."""
    trainer._logger_connector._current_fx = fx


def join_results(
    results: _ResultCollection,
    module: pl.LightningModule,
    gather: Callable[[Any], list[Any]],
    reduce_fn: Callable[..., Any],
) -> None:
    """Join the round's logged numbers over the clients of all processes.

    Numbers are joined here: a mean weighted by batch sizes, a sum, a minimum or a maximum, as they were logged. Metric
    objects of torchmetrics reduce themselves when they are computed, for which all processes must compute them, in one
    order, those that had no client too.

    Args:
        results: This process's results of the round, or of the evaluation loader that has ended.
        module: The module, which holds the metric objects.
        gather: Returns a list with the given object of every process.
        reduce_fn: The strategy's ``reduce``, with which ``self.log`` registers what it is given.
    """
    mine = {key: _Row.of(metric) for key, metric in results.valid_items() if metric.meta.on_epoch}
    joined: dict[str, list[_Row]] = {}
    for share in gather(mine):
        for key, row in share.items():
            joined.setdefault(key, []).append(row)
    for key, rows in joined.items():
        metric = results.get(key)
        if metric is None:
            metric = results[key] = _register(rows[0].meta, module, reduce_fn)
        _note_update(metric)
        if metric.is_tensor:
            _join(metric, rows)
    in_one_order = {key: results[key] for key in joined}
    in_one_order.update(results)
    results.clear()
    results.update(in_one_order)


class _Row(NamedTuple):
    """A process's number, and its weight if it is a mean; nothing of a metric object."""

    meta: _Metadata
    value: Tensor | None
    weight: Tensor | None

    @classmethod
    def of(cls, metric: _ResultMetric) -> _Row:
        # The function that reduces would bring the trainer along.
        meta = replace(metric.meta, _sync=replace(metric.meta.sync, fn=None))
        if not metric.is_tensor:
            return cls(meta, None, None)
        weight: Tensor | None = getattr(metric, "cumulated_batch_size", None)
        return cls(meta, metric.value.detach().cpu(), None if weight is None else weight.detach().cpu())


def _join(metric: _ResultMetric, rows: Sequence[_Row]) -> None:
    """Put the number of all processes in the place of one's own, computed, so that Lightning does not join it again."""
    meta = metric.meta
    device = metric.value.device
    values = torch.stack([row.value for row in rows if row.value is not None]).to(device)
    if meta.is_mean_reduction or meta.is_sum_reduction:
        metric.value = values.sum(0)
    else:
        metric.value = values.amax(0) if meta.is_max_reduction else values.amin(0)
    computed = metric.value
    if meta.is_mean_reduction:
        weights = torch.stack([row.weight for row in rows if row.weight is not None])
        metric.cumulated_batch_size = weights.sum(0).to(device)
        computed = metric.value / metric.cumulated_batch_size
    metric._computed = computed  # type: ignore[assignment]


def _register(meta: _Metadata, module: pl.LightningModule, reduce_fn: Callable[..., Any]) -> _ResultMetric:
    """Return a metric for what only other processes logged, as if this one had logged it."""
    meta = replace(meta, _sync=replace(meta.sync, fn=reduce_fn, _should=False))
    registered = _ResultMetric(meta, is_tensor=meta.metric_attribute is None)
    if meta.metric_attribute is not None:
        registered.value = module.get_submodule(meta.metric_attribute)
    return registered


class LoggedMean(NamedTuple):
    """A mean over a client's batches that its module has logged in ``training_step``.

    Attributes:
        name: Its name among the metrics of an epoch.
        mean: The mean, weighted by the batches' sizes.
        weight: The sum of these sizes.
        on_bar: Whether the progress bar shows it.
    """

    name: str
    mean: float
    weight: int
    on_bar: bool


def logged_means(trainer: pl.Trainer) -> list[LoggedMean]:
    """Return the means that ``training_step`` has logged since the round began; nothing of metric objects."""
    found = []
    metric: _ResultMetric
    for metric in trainer.fit_loop._results.values():
        meta = metric.meta
        if not (metric.is_tensor and meta.on_epoch and meta.is_mean_reduction and meta.fx == "training_step"):
            continue
        weight = int(metric.cumulated_batch_size)
        if weight:
            mean = float(metric.value / metric.cumulated_batch_size)
            found.append(LoggedMean(meta.forked_name(on_step=False), mean, weight, meta.prog_bar))
    return found


def log_means(module: pl.LightningModule, means: Sequence[LoggedMean]) -> None:
    """Log what the ``training_step`` of a client elsewhere has logged; call it inside a round."""
    before = module._current_fx_name
    module._current_fx_name = "training_step"
    for each in means:
        module.log(each.name, each.mean, prog_bar=each.on_bar, on_step=False, on_epoch=True, batch_size=each.weight)
    module._current_fx_name = before


def log_round(
    trainer: pl.Trainer, module: pl.LightningModule, values: Mapping[str, float], on_bar: Collection[str] = ()
) -> None:
    """Log numbers that are the same on all processes, at a round's end.

    A number that has been logged before updates Lightning's metric at once: a call of ``module.log`` takes 1 ms.

    Args:
        trainer: The trainer.
        module: Its module.
        values: The numbers by name.
        on_bar: The names of those that the progress bar shows.
    """
    # A barebones trainer warns of every value that is logged.
    if trainer.barebones:
        return
    results = None if has_own_log(module) else trainer._results
    fx = module._current_fx_name
    for name, value in values.items():
        metric: _ResultMetric | None = None if results is None else results.get(f"{fx}.{name}")
        if results is not None and metric is not None and metric.is_tensor:
            _enter_hook(trainer, fx)
            kept: Tensor = metric.value
            number = torch.tensor(float(value), dtype=kept.dtype, device=kept.device)
            results.update_metrics(f"{fx}.{name}", number, 1)
        else:
            module.log(name, float(value), prog_bar=name in on_bar, sync_dist=trainer.world_size > 1)
