"""Tells Lightning what the clients of a stack log and give to metric objects, as if each had trained alone.

In the worked example two clients of two batches each log ``loss`` four times. Lightning is told, in this order::

    metric objects:  client 0's two calls, then client 1's
    one number:      self.log("loss", the weighted mean of all four, batch_size=the samples of all four)
    single steps:    what loggers see of steps 1 to 4: client 0's two losses, then client 1's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, MetricCollection
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassStatScores

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning._lightning.loops.hooks import enter_fx
from fl_lightning._lightning.stacks.recording import (
    BatchValue,
    Entry,
    Keeper,
    Listener,
    LogCall,
    MetricCall,
    TensorPlace,
    logged_type,
)
from fl_lightning.seeding import preserved_generators

#: Why clients are not stacked of which one fails, or skips a batch.
NO_LOSS = "`training_step` raises an error, or returns nothing, for some batches of a client"
#: By slot: a client's batches, as entries and its row in them.
Clients = Mapping[int, list[tuple[Entry, int]]]

#: Their ``update``, which others inherit, treats each sample by itself and adds samples up.
_ADDING = (MulticlassConfusionMatrix, MulticlassStatScores, MeanAbsoluteError, MeanSquaredError)


class Journal:
    """Keeps the values that clients of a stack logged until all have been trained."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Keep the values of some clients."""
        self._entries.append(entry)

    def check_conditions(self) -> None:
        """Raise ``CannotVectorize`` if something that a step asserts is not true."""
        found = [entry.tensors[place].all() for entry in self._entries for place in entry.logged.conditions]
        if found and not bool(torch.stack(found).all()):
            raise CannotVectorize(NO_LOSS)

    def tell(self, loop: ClientLoop, seed: Callable[[int], None]) -> None:
        """Tell Lightning everything: metric objects first, then each number, then the values of single steps.

        Args:
            loop: The clients' loop.
            seed: Seeds the global generators for the client in a slot.
        """
        trainer = loop.trainer
        progress = loop.batch_progress
        trainer._logger_connector._first_loop_iter = progress.current.ready == 0
        clients = self._by_slot()
        self._update_metrics(clients, trainer, seed)
        earlier = {key: metric._forward_cache for key, metric in loop._results.valid_items()}
        for alike in self._calls_alike():
            with _context_of(alike[0][1].fx, trainer):
                _log(loop, alike)
        steps = _tell_steps(loop, clients, earlier)
        batches = sum(map(len, clients.values()))
        for tracker in (progress.total, progress.current):
            for count in ("ready", "started", "processed", "completed"):
                setattr(tracker, count, getattr(tracker, count) + batches)
        counts = loop.automatic_optimization.optim_progress.optimizer.step
        for tracker in (counts.total, counts.current):
            tracker.ready += steps
            tracker.completed += steps
        progress.is_last_batch = progress.current.ready >= loop._round_batches
        if progress.is_last_batch:
            loop.hand_on_to_trainer()

    def _by_slot(self) -> Clients:
        """Return the batches of each client, clients in the order of their slots."""
        clients: dict[int, list[tuple[Entry, int]]] = {}
        for entry in self._entries:
            for row, slot in enumerate(entry.slots):
                clients.setdefault(slot, []).append((entry, row))
        return {slot: clients[slot] for slot in sorted(clients)}

    def _calls_alike(self) -> list[list[tuple[Entry, LogCall]]]:
        """Return the calls of ``self.log`` by name and options; of two sorts of one name Lightning makes an error."""
        found: list[list[tuple[Entry, LogCall]]] = []
        for entry in self._entries:
            for call in entry.logged.calls:
                alike = next((each for each in found if call.logs_as(each[0][1])), None)
                if alike is None:
                    found.append([(entry, call)])
                else:
                    alike.append((entry, call))
        return found

    # ---- metric objects ----

    def _update_metrics(self, clients: Clients, trainer: pl.Trainer, seed: Callable[[int], None]) -> None:
        """Make the calls of metric objects: at once, or in the order in which the clients would have made them."""
        calls: dict[int, list[tuple[Entry, MetricCall]]] = {}
        for entry in self._entries:
            for call in entry.logged.metric_calls:
                if isinstance(call.metric, Listener):
                    continue
                calls.setdefault(id(call.metric), []).append((entry, call))
        if not calls:
            return
        module = trainer.lightning_module
        apart = self._needed_apart(module)
        done: set[int] = set()
        for metric, own_calls in calls.items():
            if metric in apart:
                continue
            with _context_of(own_calls[0][1].fx, trainer):
                if _update_at_once(own_calls):
                    done.add(metric)
        if calls.keys() == done:
            return
        with preserved_generators(next(module.parameters()).device):
            for slot, own in clients.items():
                seed(slot)
                for entry, row in own:
                    _replay(entry, row, done, trainer)

    def _needed_apart(self, module: nn.Module) -> set[int]:
        """Return the identities of metric objects that need each client's own calls in their order.

        Their values of single batches are logged, or they are in others.
        """
        found: set[int] = set()
        for entry in self._entries:
            for log in entry.logged.calls:
                if isinstance(log.value, BatchValue):
                    found.add(id(entry.logged.metric_calls[log.value.call].metric))
                elif isinstance(log.value, Metric) and log.options.get("on_step") is not False:
                    found.add(id(log.value))
        for metric in module.modules():
            if isinstance(metric, (Metric, MetricCollection)):
                found.update(id(part) for part in metric.modules() if part is not metric)
        return found


def _context_of(fx: str | None, trainer: pl.Trainer) -> AbstractContextManager[None]:
    """Return the context of a hook's calls: a step has the trainer's precision, which sets the type of its numbers."""
    return trainer.precision_plugin.train_step_context() if fx == "training_step" else nullcontext()


def _replay(entry: Entry, row: int, done: set[int], trainer: pl.Trainer) -> None:
    """Make one client's calls of a step, and note the values that are logged by the names of metric objects.

    Args:
        entry: The batches of several clients.
        row: The client's row.
        done: Identities of metric objects that have had all their calls.
        trainer: The trainer.
    """
    calls = entry.logged.metric_calls
    for number in range(len(calls) + 1):
        for place, log in enumerate(entry.logged.calls):
            if log.metric_calls == number and isinstance(log.value, Metric):
                entry.cached[row, place] = log.value._forward_cache
        is_due = number < len(calls) and not isinstance(calls[number].metric, Listener)
        if is_due and id(calls[number].metric) not in done:
            own = [tensor[row] for tensor in entry.tensors]
            with _context_of(calls[number].fx, trainer):
                entry.returned[row, number] = call_metric(calls[number], own, calls[number].metric)


def call_metric(
    call: MetricCall, tensors: Sequence[Tensor], metric: Metric | MetricCollection | Keeper | Listener
) -> Any:
    """Make one client's call, and return what it returns.

    Args:
        call: The call.
        tensors: The client's tensors that it names.
        metric: The metric object that is called.
    """
    leaves = list(call.leaves)
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, TensorPlace):
            value = tensors[leaf.place]
            leaves[place] = value if leaf.number is None else leaf.number(value.item())
    args, kwargs = pytree.tree_unflatten(leaves, call.spec)
    return getattr(metric, call.method)(*args, **kwargs)


def _update_at_once(calls: Sequence[tuple[Entry, MetricCall]]) -> bool:
    """Update a metric object that adds samples up with all clients' batches; return whether that could be."""
    first = calls[0][1]
    metric = first.metric
    if not isinstance(metric, Metric) or not _adds_samples_up(metric):
        return False
    # What computes or resets it has no arguments.
    if any(call.spec != first.spec for _, call in calls):
        return False
    leaves: list[Tensor] = []
    for number, leaf in enumerate(first.leaves):
        if not isinstance(leaf, TensorPlace) or leaf.number is not None:
            return False
        batches: list[Tensor] = []
        for entry, call in calls:
            given = entry.tensors[call.leaves[number].place]
            if isinstance(given, Tensor) and given.dim() > 1:
                batches.append(given.flatten(0, 1))
            else:
                # Batches of unequal sizes are a list.
                batches += given
        if any(batch.dim() == 0 or batch.shape[1:] != batches[0].shape[1:] for batch in batches):
            return False
        leaves.append(torch.cat(batches))
    args, kwargs = pytree.tree_unflatten(leaves, first.spec)
    count = metric._update_count
    try:
        metric.update(*args, **kwargs)
    except Exception:
        # There are more classes than there may be in a batch, say: the client's own call tells.
        metric._update_count = count
        return False
    metric._update_count = count + sum(len(entry.slots) for entry, _ in calls)
    return True


def _adds_samples_up(metric: Metric) -> bool:
    """Whether a metric object treats each sample by itself, and adds samples up in tensors."""
    kind = type(metric)
    if kind.update not in [known.update for known in _ADDING] or kind.forward is not Metric.forward:
        return False
    return all(isinstance(default, Tensor) for default in metric._defaults.values())


# ---- logged numbers ----


def _log(loop: ClientLoop, alike: Sequence[tuple[Entry, LogCall]]) -> None:
    """Log one number for all that were logged under a name."""
    module = loop.trainer.lightning_module
    first = alike[0][1]
    previous = enter_fx(module, first.fx)
    options = {key: value for key, value in first.options.items() if key != "batch_size"}
    if isinstance(first.value, Metric):
        loop.client_log(first.name, first.value, **options)
    else:
        value, weight = _joint(alike)
        loop.client_log(first.name, value, **options, batch_size=weight)
    enter_fx(module, previous)


def _joint(alike: Sequence[tuple[Entry, LogCall]]) -> tuple[Tensor, float]:
    """Return one number in the place of many, and its weight in a mean.

    As in Lightning, a value is weighted in its own type, and sums have the type of logged numbers or a wider one.
    """
    reduction = alike[0][1].reduction
    values = torch.cat([entry.values(call) for entry, call in alike])
    wide = torch.promote_types(values.dtype, logged_type())
    if reduction == "sum":
        return values.sum(dtype=wide), 1
    if reduction == "max":
        return values.amax(), 1
    if reduction == "min":
        return values.amin(), 1
    weights: list[float] = []
    for entry, call in alike:
        weights += entry.weights(call)
    total = sum(weights)
    weighted = values * torch.tensor(weights, dtype=values.dtype, device=values.device)
    return weighted.sum(dtype=wide) / (total or 1), total


# ---- single steps ----


def _tell_steps(loop: ClientLoop, clients: Clients, earlier: Mapping[str, Any]) -> int:
    """Give loggers the values of those steps that they would have been given, at their numbers; return how many steps.

    Args:
        loop: The clients' loop.
        clients: Their batches.
        earlier: The values of single steps from before all these clients.
    """
    trainer = loop.trainer
    begin = loop._batches_that_stepped
    shown = {key: metric for key, metric in loop._results.valid_items() if metric.meta.on_step}
    for key, metric in shown.items():
        # It is as if nobody had logged it yet.
        metric._forward_cache = earlier.get(key)
    every = fit_trainer(trainer).log_every_n_steps if trainer.loggers else 0
    if every and trainer.should_stop:
        # So does Lightning in rounds that `min_epochs` still asks for.
        every = 1
    rates = [callback for callback in fit_trainer(trainer).callbacks if isinstance(callback, LearningRateMonitor)]
    #: The last batch that logged each value: its entry, the client's row, and the place of `self.log`.
    latest: dict[str, tuple[Entry, int, int]] = {}
    for batches in clients.values():
        # The batches whose gradients the step accumulates.
        window: list[Entry] = []
        for entry, row in batches:
            window.append(entry)
            _tell_others(entry, row, trainer)
            if shown:
                for place, call in enumerate(entry.logged.calls):
                    latest[call.key] = entry, row, place
            if not entry.steps[row]:
                continue
            if every and (loop._batches_that_stepped + 1) % every == 0:
                _show_values(shown, latest, trainer)
                for each in window:
                    _show_rates(loop, rates, each.settings)
                trainer._logger_connector.update_train_step_metrics()
            loop._batches_that_stepped += 1
            window = []
    _show_values(shown, latest, trainer)
    return loop._batches_that_stepped - begin


def _tell_others(entry: Entry, row: int, trainer: pl.Trainer) -> None:
    """Make a client's calls of what a step tells others, such as ``print``."""
    for call in entry.logged.metric_calls:
        if isinstance(call.metric, Listener):
            with _context_of(call.fx, trainer):
                call_metric(call, [tensor[row] for tensor in entry.tensors], call.metric)


def _show_values(shown: Mapping[str, Any], latest: Mapping[str, tuple[Entry, int, int]], trainer: pl.Trainer) -> None:
    """Leave the values of single steps as they would be after a client's batch."""
    for key in shown.keys() & latest.keys():
        metric = shown[key]
        entry, row, place = latest[key]
        call = entry.logged.calls[place]
        if isinstance(call.value, Metric):
            metric._forward_cache = entry.cached[row, place]
        else:
            with _context_of(call.fx, trainer):
                # Values of two names may be one tensor, to which a callback may write.
                metric._forward_cache = entry.value(call, row).clone()


def _show_rates(
    loop: ClientLoop, monitors: Sequence[LearningRateMonitor], settings: list[dict[str, Any]] | None
) -> None:
    """Let monitors of learning rates see a step's."""
    trainer = loop.trainer
    groups = trainer.optimizers[0].param_groups
    present = [dict(group) for group in groups]
    for group, values in zip(groups, settings or (), strict=False):
        group.update(values)
    for monitor in monitors:
        monitor.on_train_batch_start(trainer, trainer.lightning_module, None, 0)
    for group, values in zip(groups, present, strict=True):
        group.update(values)
