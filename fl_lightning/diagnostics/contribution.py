"""Contributions of clients to rounds, by Shapley values and by leaving one out."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from fl_lightning.callbacks.client_metrics import Metric
from fl_lightning.diagnostics.observer import RoundObserver, aggregation_of, loop_of
from fl_lightning.files import atomic_file
from fl_lightning.metrics import accuracy
from fl_lightning.notebook import Drawn
from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.messages import ClientResult
from fl_lightning.seeding import Stream, numpy_generator
from fl_lightning.settings import Count, check_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Returns what a coalition of clients is worth, by their places in the round.
Worth = Callable[[frozenset[int]], float]
_ENDINGS = (".csv", ".png", ".pdf", ".svg")


class Contributed(NamedTuple):
    """The contribution of a client to a round.

    Attributes:
        round: The round, from 0.
        client: The client.
        shapley: Its Shapley value.
        leave_one_out: What the round's clients together are worth less without it.
    """

    round: int
    client: int
    shapley: float
    leave_one_out: float


class _ContributionParts(NamedTuple):
    figure: Figure
    axes: Axes


class ContributionPlot(_ContributionParts, Drawn):
    """The picture of contributions, which a notebook shows; it unpacks as ``figure, axes``."""

    def __repr__(self) -> str:
        return "ContributionPlot(`.savefig(path)` writes it)"


def shapley_values(number: int, worth: Worth) -> list[float]:
    """Return the Shapley values of so many clients, from the worths of all ``2**number`` coalitions.

    Args:
        number: Number of clients.
        worth: What a coalition is worth.
    """
    values = [0.0] * number
    for client in range(number):
        others = [other for other in range(number) if other != client]
        for size in range(number):
            weight = 1 / (number * comb(number - 1, size))
            for coalition in combinations(others, size):
                before = frozenset(coalition)
                values[client] += weight * (worth(before | {client}) - worth(before))
    return values


def sampled_shapley_values(number: int, worth: Worth, orders: Sequence[Sequence[int]]) -> list[float]:
    """Return the mean over some orders of what each client adds to those before it.

    Args:
        number: Number of clients.
        worth: What a coalition is worth.
        orders: Permutations of the clients; the mean over all of them is the Shapley value.
    """
    values = [0.0] * number
    for order in orders:
        coalition: frozenset[int] = frozenset()
        for client in order:
            larger = coalition | {client}
            values[client] += (worth(larger) - worth(coalition)) / len(orders)
            coalition = larger
    return values


class Contribution(RoundObserver):
    """Measures what each client's update contributes to each round (gradient Shapley, Song et al. 2019).

    A coalition is worth the metric, on the validation samples, of the model that the server would have if these clients
    alone had reported: its model plus the mean of their updates, weighted as the aggregation weighs them. A round's
    Shapley values add up to what all its clients together are worth more than the model before. A client's contribution
    is the sum over rounds. Updates count as clients make them, before exchanges.

    Args:
        path: File that is written when the fit ends: a table (``.csv``) or a picture (``.png``, ``.pdf``, ``.svg``);
            none if ``None``.
        metric: Takes predictions and targets of all validation samples and returns a number of which more is better.
        exact_up_to: Rounds of at most so many clients have exact values, of ``2**m`` models.
        permutations: Random orders of the clients by which larger rounds are sampled, with ``m`` models each at most.

    Attributes:
        records: A :class:`Contributed` for each round and client that reported.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, with several processes, without validation
            samples, or with an algorithm without a mean of the round's clients: an asynchronous one, or redistribution.

    Example:
        >>> contribution = Contribution()
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[FedAvg(2), contribution])
        >>> trainer.fit(module, datamodule=data)
        >>> contribution.total  # the sum over rounds, by client
    """

    #: The results of the round's clients, and the server's model when the round began.
    _results: list[ClientResult]
    _model: Tensor

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        metric: Metric = accuracy,
        exact_up_to: Count = 5,
        permutations: Count = 30,
    ) -> None:
        given: dict[str, Any] = {"metric": metric, "exact_up_to": exact_up_to, "permutations": permutations}
        check_arguments(self, {"path": path})
        check_arguments(self, given)
        self.metric: Metric = given["metric"]
        self.exact_up_to: int = given["exact_up_to"]
        self.permutations: int = given["permutations"]
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.suffix.lower() not in _ENDINGS:
            raise ValueError(f"`path` must end in {', '.join(_ENDINGS)}, got {path!r}.")
        self.reset()

    def reset(self) -> None:
        """Start without records."""
        self.records: list[Contributed] = []

    @property
    def total(self) -> dict[int, float]:
        """Each client's contribution: the sum of its Shapley values over rounds."""
        total: dict[int, float] = {}
        for record in sorted(self.records):
            total[record.client] = total.get(record.client, 0.0) + record.shapley
        return dict(sorted(total.items()))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that there are rounds to measure."""
        callback = aggregation_of(trainer, self)
        schedule = callback.algorithm.schedule
        if schedule.asynchronous or schedule.hides_clients:
            raise ValueError(
                f"Contribution measures rounds in which the server takes a mean of its clients, got {schedule!r}. Give "
                "a synchronous algorithm, such as FedAvg."
            )
        if trainer.world_size > 1:
            raise ValueError(
                f"Contribution needs one process, which has all updates, got {trainer.world_size}. Give "
                "Trainer(devices=1)."
            )
        if not loop_of(trainer).data.federated_split.val:
            raise ValueError("Contribution needs validation samples, got none. Give the data module a split with some.")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the server's model, and forget the last round's clients."""
        self._results = []
        self._model = aggregation_of(trainer, self).algorithm.server.model

    def on_client_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, result: ClientResult) -> None:
        """Keep a client's update, unless it is of a further training or invalid."""
        if not result.task.phase and result.is_finite:
            self._results.append(result)

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure the round's clients."""
        loop = loop_of(trainer)
        results = sorted(self._results, key=lambda result: result.client)
        number = len(results)
        aggregation = aggregation_of(trainer, self).algorithm.aggregation
        weights = [aggregation.weight_of(result) for result in results]
        known: dict[frozenset[int], float] = {}

        def worth(coalition: frozenset[int]) -> float:
            if coalition not in known:
                known[coalition] = self._worth(trainer, self._model_of(coalition, results, weights))
            return known[coalition]

        round_index = loop.round_index - 1
        with loop.training.vector.preserved():
            if number <= self.exact_up_to:
                values = shapley_values(number, worth)
            else:
                rng = numpy_generator(loop.settings.run_seed, Stream.CONTRIBUTION, round_index)
                orders = [rng.permutation(number).tolist() for _ in range(self.permutations)]
                values = sampled_shapley_values(number, worth, orders)
            everybody = frozenset(range(number))
            for place, result in enumerate(results):
                left_out = worth(everybody) - worth(everybody - {place})
                self.records.append(Contributed(round_index, result.client, values[place], left_out))
        # Models of clients are large: they are not kept until the next round.
        del self._results

    def _model_of(self, coalition: frozenset[int], results: Sequence[ClientResult], weights: Sequence[float]) -> Tensor:
        """Return the server's model, moved by the mean update of a coalition, shape ``(size,)``."""
        mean = RunningMean()
        for place in sorted(coalition):
            mean.add(results[place].vector - results[place].received, weights[place])
        update, _ = mean.pop()
        if update is None:
            return self._model
        return (self._model + update).to(self._model.dtype)

    def _worth(self, trainer: pl.Trainer, model: Tensor) -> float:
        """Return the metric of a model, shape ``(size,)``, on all validation samples."""
        loop = loop_of(trainer)
        loop.training.vector.write(model)
        return float(self.metric(*loop.training.quiet.predictions(loop.data.val_dataloader())))

    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the table, or the picture."""
        if self.path is None or not self.records:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.suffix.lower() != ".csv":
            self.plot().savefig(self.path, dpi=120)
            return
        with atomic_file(self.path) as path, path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Contributed._fields)
            writer.writerows(self.records)

    def plot(self) -> ContributionPlot:
        """Draw each client's contribution as it grows from round to round.

        Raises:
            RuntimeError: If nothing was recorded.
        """
        from matplotlib.figure import Figure

        if not self.records:
            raise RuntimeError("Nothing was recorded: plot a Contribution after `trainer.fit`.")
        figure = Figure(figsize=(7.0, 4.0), layout="constrained")
        axes = figure.subplots()
        for client in self.total:
            own = [record for record in self.records if record.client == client]
            axes.plot(
                [record.round + 1 for record in own],
                np.cumsum([record.shapley for record in own]),
                marker=".",
                label=str(client),
            )
        axes.axhline(0.0, color="0.8", linewidth=0.8)
        axes.set(xlabel="round", ylabel="contribution so far")
        axes.legend(title="client", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        return ContributionPlot(figure, axes)

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        return {"records": [list(record) for record in self.records]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the records of a checkpoint."""
        self.records = [Contributed(*entry) for entry in state_dict["records"]]
