"""Each client's accuracy after its local training, and after the server's aggregation."""

from __future__ import annotations

import lightning.pytorch as pl

from fl_lightning.callbacks.client_metrics import Metric, score_of
from fl_lightning.clients.training import LocalTraining
from fl_lightning.diagnostics.observer import RoundObserver, loop_of
from fl_lightning.metrics import accuracy
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import check_arguments


class LocalAccuracy(RoundObserver):
    """Logs ``fed/local_acc`` and ``fed/aggregated_acc``: the mean over a round's clients, each on its own samples.

    The first is of the client's own model after local training, the second of the model that the user sees at the
    round's end, on the same clients' training samples. A client that trains several times in an asynchronous round
    counts as often in the first, and once in the second. The module is called on a batch's inputs, in eval mode;
    predictions and targets are those of the data module's ``outputs_and_targets``. That is two more passes over the
    round's data, without gradients, or over the part of each client's batches that ``limit_val_batches`` leaves; with 0
    nothing is logged. Clients whose models have NaN or infinite values are in neither mean.

    Args:
        metric: Takes predictions and targets of one client and returns a number. The default is
            :func:`~fl_lightning.metrics.accuracy`, of scores (n, C) and classes (n,), and of others that it knows.
        name: Name of the metric in the logs.

    Attributes:
        local: The last round's metric after local training, by client: the mean of what it handed in.
        aggregated: The same after aggregation.
    """

    #: Client and metric of each result of the round, on this process.
    _results: list[tuple[int, float]]

    def __init__(self, metric: Metric = accuracy, name: str = "acc") -> None:
        self.metric = metric
        self.name = name
        check_arguments(self)
        self.local: dict[int, float] = {}
        self.aggregated: dict[int, float] = {}

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the last round."""
        self._results = []
        self.local = {}
        self.aggregated = {}
        self.values = {}

    def on_client_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, result: ClientResult) -> None:
        """Evaluate the client's model, unless it has NaN or infinite values: its largest score would be any class."""
        if not trainer.limit_val_batches or not bool(result.parameters.isfinite().all()):
            return
        client = result.task.client
        value = self._measure(loop_of(trainer).training, client)
        self._results.append((client, value))

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate the model that the user sees on the round's clients."""
        loop = loop_of(trainer)
        aggregated = {client: self._measure(loop.training, client) for client in dict(self._results)}
        results: list[tuple[int, float]] = []
        aggregated_of_all: dict[int, float] = {}
        for results_of_process, aggregated_of_process in loop.gather_objects((self._results, aggregated)):
            results.extend(results_of_process)
            aggregated_of_all.update(aggregated_of_process)
        if not results:
            return
        # Sorted, so that sums do not depend on the processes.
        results.sort()
        values_of: dict[int, list[float]] = {}
        for client, value in results:
            values_of.setdefault(client, []).append(value)
        self.local = {client: _mean(values) for client, values in values_of.items()}
        self.aggregated = {client: aggregated_of_all[client] for client in values_of}
        self.values = {
            f"fed/local_{self.name}": _mean([value for _, value in results]),
            f"fed/aggregated_{self.name}": _mean(list(self.aggregated.values())),
        }

    def _measure(self, training: LocalTraining, client: int) -> float:
        """Return the metric of a client's training samples, at the module's weights."""
        batches = training.batches.to_evaluate(client)
        predictions, targets = training.quiet.predictions(batches)
        return score_of(self, client, predictions, targets)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
