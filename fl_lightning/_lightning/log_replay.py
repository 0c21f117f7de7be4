"""The log calls of stacked clients, told to Lightning client by client, as if each had trained alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.client_loop import ClientLoop
from fl_lightning._lightning.hooks import enter_fx
from fl_lightning._lightning.metric_replay import replay
from fl_lightning._lightning.recording import ClientEntries, Entry, LogCall, logged_type


class Journal:
    """Keeps the values that clients of stacks logged until all have been trained."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Keep the values of some clients."""
        self._entries.append(entry)

    def _by_slot(self) -> dict[int, ClientEntries]:
        """Return the batches of each client, clients in the order of their slots."""
        clients: dict[int, ClientEntries] = {}
        for entry in self._entries:
            for row, slot in enumerate(entry.slots):
                clients.setdefault(slot, []).append((entry, row))
        return {slot: clients[slot] for slot in sorted(clients)}

    # ---- logged numbers ----

    def _numbers(self) -> Iterable[list[tuple[Entry, LogCall]]]:
        """Return the calls of each name."""
        found: dict[str, list[tuple[Entry, LogCall]]] = {}
        for entry in self._entries:
            for call in entry.logged.calls:
                found.setdefault(call.key, []).append((entry, call))
        return found.values()

    # ---- Lightning ----

    def tell(self, loop: ClientLoop, seed: Callable[[int], None], *, may_draw: bool) -> None:
        """Tell Lightning everything.

        Args:
            loop: The clients' loop.
            seed: Seeds the global generators for the client in a slot.
            may_draw: Whether metric objects may draw: nothing else has drawn.

        Raises:
            CannotVectorize: If a metric object draws that may not; nobody has been told anything then.
        """
        if not self._entries:
            return
        clients = list(self._by_slot().values())
        trainer, progress = loop.trainer, loop.batch_progress
        trainer._logger_connector._first_loop_iter = progress.current.ready == 0
        with trainer.precision_plugin.train_step_context():
            replay(self._by_slot(), loop.trainer.lightning_module, seed, may_draw=may_draw)
        earlier = {key: metric._forward_cache for key, metric in loop._results.valid_items()}
        with trainer.precision_plugin.train_step_context():  # it sets the type in which Lightning sums
            for pairs in self._numbers():
                for like in _with_equal_options(pairs):  # of others Lightning makes an error
                    self._log(loop, like)
        self._tell_loggers(loop, clients, earlier)
        batches = sum(map(len, clients))
        steps = sum(entry.steps[row] for own in clients for entry, row in own)
        for tracker in (progress.total, progress.current):
            for count in ("ready", "started", "processed", "completed"):
                setattr(tracker, count, getattr(tracker, count) + batches)
        counts = loop.automatic_optimization.optim_progress.optimizer.step
        for tracker in (counts.total, counts.current):
            tracker.ready += steps
            tracker.completed += steps
        loop._accumulating = False
        _leave_values(loop._results, clients, (len(clients) - 1, len(clients[-1]) - 1), earlier)
        progress.is_last_batch = progress.current.ready >= loop._round_batches
        if progress.is_last_batch:
            loop.hand_on_to_trainer()

    def _log(self, loop: ClientLoop, pairs: Sequence[tuple[Entry, LogCall]]) -> None:
        """Log one number for all that were logged under a name in one way."""
        module, first = loop.trainer.lightning_module, pairs[0][1]
        previous = enter_fx(module, first.fx)
        options = {key: value for key, value in first.options.items() if key != "batch_size"}
        if isinstance(first.value, Metric):
            loop.client_log(first.name, first.value, **options)
        else:
            value, weight = _joint(pairs)
            loop.client_log(first.name, value, **options, batch_size=weight)
        enter_fx(module, previous)

    def _tell_loggers(self, loop: ClientLoop, clients: Sequence[ClientEntries], earlier: dict[str, Any]) -> None:
        """Give loggers the values of those steps that they would have been given, at their numbers."""
        trainer = loop.trainer
        ends = [[place for place, (entry, row) in enumerate(own) if entry.steps[row]] for own in clients]
        so_far = list(accumulate(map(len, ends)))
        before, every = loop._batches_that_stepped, trainer.log_every_n_steps
        if every and trainer.should_stop:  # as Lightning does in rounds that `min_epochs` still asks for
            every = 1
        rates = [callback for callback in trainer.callbacks if isinstance(callback, LearningRateMonitor)]
        if trainer.loggers and every:
            for due in range(-(-(before + 1) // every) * every - 1, before + so_far[-1], every):
                client = bisect_right(so_far, due - before)
                number = due - before - (so_far[client - 1] if client else 0)
                place, first = ends[client][number], ends[client][number - 1] + 1 if number else 0
                unheard = _leave_values(loop._results, clients, (client, place), earlier)
                loop._batches_that_stepped = due
                for entry, _ in clients[client][first : place + 1]:  # all batches that the step accumulates
                    _show_rates(loop, rates, entry.settings)
                trainer._logger_connector.update_train_step_metrics()
                for metric in unheard:
                    metric.has_reset = False
        loop._batches_that_stepped = before + so_far[-1]


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


def _with_equal_options(pairs: Sequence[tuple[Entry, LogCall]]) -> list[list[tuple[Entry, LogCall]]]:
    """Return the calls of a name apart by how they log."""
    found: list[list[tuple[Entry, LogCall]]] = []
    for pair in pairs:
        for like in found:
            if pair[1].logs_as(like[0][1]):
                like.append(pair)
                break
        else:
            found.append([pair])
    return found


def _joint(pairs: Sequence[tuple[Entry, LogCall]]) -> tuple[Tensor, float]:
    """Return one number in the place of many, and its weight in a mean.

    As in Lightning, a value is weighted in its own type, and sums have the type of logged numbers or a wider one.
    """
    reduction = pairs[0][1].reduction
    values = torch.cat([entry.values(call) for entry, call in pairs])
    wide = torch.promote_types(values.dtype, logged_type())
    if reduction == "sum":
        return values.sum(dtype=wide), 1
    if reduction != "mean":
        return (values.amax() if reduction == "max" else values.amin()), 1
    weights = [weight for entry, call in pairs for weight in entry.weights(call)]
    total = sum(weights)
    weighted = (values.to(wide) * torch.tensor(weights, dtype=wide, device=values.device)).to(values.dtype)
    return weighted.sum(dtype=wide) / (total or 1), total


def _leave_values(
    results: Any, clients: Sequence[ClientEntries], at: tuple[int, int], earlier: dict[str, Any]
) -> list[Any]:
    """Leave the values of single steps as they would be after a client's batch.

    Args:
        results: Lightning's.
        clients: All clients' batches.
        at: The client's place, and its batch's.
        earlier: The values from before all these clients.

    Returns:
        What nobody has logged until then, marked as empty.
    """
    unheard = []
    for key, metric in results.valid_items():
        if not metric.meta.on_step:
            continue
        found = _last(key, clients, *at)
        if found is None:
            if key in earlier:
                metric._forward_cache = earlier[key]
            else:
                unheard.append(metric)
            continue
        entry, row, call = found
        if isinstance(call.value, Metric):
            metric._forward_cache = entry.cached[row, entry.logged.calls.index(call)]
        else:
            metric._forward_cache = entry.value(call, row).clone()
            if not metric.meta.on_epoch:
                metric.value = metric._forward_cache
        metric._computed = None
    for metric in unheard:
        metric.has_reset = True
    return unheard


def _last(key: str, clients: Sequence[ClientEntries], client: int, place: int) -> tuple[Entry, int, LogCall] | None:
    """Return the last time that something was logged under a key, up to a client's batch."""
    for number in range(client, -1, -1):
        own = clients[number]
        for entry, row in reversed(own[: place + 1] if number == client else own):
            for call in reversed(entry.logged.calls):
                if call.key == key:
                    return entry, row, call
    return None
