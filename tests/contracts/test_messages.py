"""Messages show the values that a reader needs to find the mistake: each message is provoked once.

A new message with a value in it has a line here, and its text one in ``messages.txt``, which a reader has read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_table import small
from helpers.toys import Fixed, Quadratic, fit_clients, quadratic_clients
from helpers.written import told
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning import experiment, metrics, partitioners, parts, report
from fl_lightning.data import ClientSplit, WithinClientSplit
from fl_lightning.datamodules import TableDataModule, TorchDatasetDataModule
from fl_lightning.diagnostics import UpdateNorms
from fl_lightning.executors import Executor, SequentialExecutor, make_executor
from fl_lightning.experiment.build import make
from fl_lightning.partitioners import FeatureQPPartitioner, IIDPartitioner, LimitedClassesPartitioner, TopicGraph
from fl_lightning.testing.fits import quiet_trainer

X = torch.zeros(4, dtype=torch.float64)
LABELS = np.arange(40) % 4
IID = IIDPartitioner(5)
PARTITION = partitioners.Partition((np.arange(5), np.arange(5, 9)))
GRAPH = TopicGraph(("Top/A", "Top/B"), np.array([[0, 1]]))
ONE = quadratic_clients([1.0], [1.0])
NAN = float("nan")
POOLED = DataLoader(TensorDataset(X, X))


class Growing(fl.UniformSampler):
    """Draws one client more in each round."""

    def __init__(self) -> None:
        super().__init__(2)

    def cohort_size(self, num_clients: int) -> int:
        return 2 + self.round


class Own(SequentialExecutor):
    """Another executor, which says nothing about itself."""

    describe = Executor.describe


class Shorter(parts.Compressor):
    """Returns nothing of a message."""

    def compress(self, values: Any, generator: Any) -> Any:
        return values[:0]

    def encoded(self, payload: Any) -> Any:
        return payload


class Short(parts.Median):
    def merge(self, *args: Any) -> Any:
        return torch.zeros(2)


class Breaks(parts.Exchange):
    """Makes NaN of an update."""

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        return result.with_delta(result.delta * float("nan"))


class Leaves(parts.Synchronous):
    """Takes no result."""

    def play(self, tasks: Any, server: Any) -> Any:
        yield tasks
        return server.model


def begun(**options: Any) -> parts.Run:
    """Return the fit of an algorithm with clients of 1 and 2 samples and one parameter, in its third round."""
    algorithm = parts.Algorithm(parts.UniformSampler(1), **options)
    algorithm.run = parts.Run.begin(algorithm, parts.Federation(np.array([1, 2]), X[:1], parts.Layout.of_parameters(1)))
    algorithm.run.begin_round(2)
    return algorithm.run


def result(**values: Any) -> parts.ClientResult:
    return parts.ClientResult(parts.Task(0, 4, 1), X, X + 1, 1, **values)


def no_preprocessing(tmp_path: Path) -> None:
    torch.save({"callbacks": {}, "state_dict": {}}, tmp_path / "last.ckpt")
    fl.load_preprocessing(tmp_path / "last.ckpt")


def train(callback: fl.AggregationCallback, *others: Any, rounds: int = 2, clients: int = 2, **options: Any) -> Any:
    data = quadratic_clients([1.0] * clients, [1.0] * clients)
    return fit_clients(callback, Quadratic(lr=0.1), data, rounds, *others, **options)


def table(**data: Any) -> experiment.Table:
    return experiment.read_table(small(data={"digits": {**small()["data"]["digits"], **data}}))


def trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,speed\n0,1\n2,3\n")
    parts.VirtualClock.from_file(path)


def another_module(_: Path) -> None:
    trainer = train(fl.FedAvg(1.0))
    trainer.fit_loop.max_epochs = 4
    trainer.fit(Quadratic(0.1, [0.0, 0.0]), datamodule=fl.TensorDataModule(ONE))


def another_exchange(tmp_path: Path) -> None:
    trainer = train(fl.FedAvg(1.0, exchange=parts.TopK(0.5)))
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    train(fl.FedAvg(1.0, exchange=parts.TopK(0.5, error_feedback=False)), ckpt_path=tmp_path / "first.ckpt")


def a_column(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,size\n1,2\n2,big\n")
    TableDataModule(tmp_path / "rows.csv", "size", partitioner=IIDPartitioner(2), regression=True).setup("fit")


def left_out(*targets: float, **options: Any) -> None:
    """Train clients of which those without a target return NaN."""
    fit_clients(fl.FedAvg(1.0, **options), Quadratic(0.1), quadratic_clients([1.0] * len(targets), [*targets]), 2)


def taken(tmp_path: Path) -> Path:
    (tmp_path / "taken").write_text("")
    return tmp_path / "taken"


class ByHand(Quadratic):
    automatic_optimization = False


class FourGroups(Quadratic):
    """Has SGD with other options for each of four parameters, of which the last one has what is asked for."""

    def configure_optimizers(self) -> Any:
        self.others = nn.ParameterList(torch.zeros(1) for _ in range(3))
        options = [{"nesterov": True}, {"dampening": 0.25}, {"momentum": 0.75}, {}]
        groups = [{"params": [each], **kind} for each, kind in zip((self.w, *self.others), options, strict=True)]
        return torch.optim.SGD(groups, lr=self.lr, momentum=0.5)


class Lists(fl.TensorDataModule):
    """Compares a list with a text."""

    def outputs_and_targets(self, batch: Any, outputs: Any) -> Any:
        return [1], "x"


def score(*metric: fl.ClientMetrics) -> None:
    data = Lists(ONE, val=[*ONE])
    quiet_trainer(callbacks=[*metric]).validate(Tested(0.1), data, verbose=False)


def folder_of_checkpoints(tmp_path: Path) -> None:
    train(fl.FedAvg(), fl.FederatedCheckpoint(dirpath=taken(tmp_path)), enable_checkpointing=True)


def evaluate_on_nothing(_: Path) -> None:
    quiet_trainer().test(Tested(0.1), fl.TensorDataModule(ONE, val=ONE), verbose=False)


class Tested(Quadratic):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.w)

    validation_step = test_step

    def forward(self, x: Any) -> Any:
        return x


def privacy(delta: float) -> parts.Exchange:
    return parts.LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=delta)


NO_CLASS = {"class_path": "torch.optim.SGD", "init_args": {"inner": {"class_path": "torch.nn.Linear", "init_args": 3}}}

#: The texts by name; ``FOLDER`` stands for that of the test.
MESSAGES = dict(line.split(": ", 1) for line in Path(__file__).with_name("messages.txt").read_text().splitlines())
#: What is done, by the name of its text.
ERRORS: dict[str, Callable[[Path], Any]] = {
    "an executor by name": lambda _: make_executor("sequential", 3),
    "an executor": lambda _: make_executor(SequentialExecutor(), 3),
    "windows of a client": lambda _: fl.VirtualClock(online={0: 5}),
    "windows": lambda _: fl.VirtualClock(online={2: [(3, 1)]}),
    "windows that overlap": lambda _: fl.VirtualClock(online={2: [(3, 5), (0, 1), (2, 4)]}),
    "no windows": lambda _: fl.VirtualClock(online={2: []}),
    "a trace": trace,
    "settings of an aggregation": lambda _: fl.FedAvg(weighting="uniform", aggregation=parts.Median()),
    "a number and a sampler": lambda _: fl.RADFed(2, 3, sampler=fl.UniformSampler(2)),
    "a sampler of arrivals": lambda _: fl.Federated(
        1, schedule=parts.Asynchronous(fl.VirtualClock()), sampler=fl.UniformSampler(2)
    ),
    "a class for a part": lambda _: fl.FedAvg(1, sampler=fl.UniformSampler),
    "history and speeds": lambda _: fl.FedAsync(history=3, speeds=[1.0]),
    "counts of stacked factors": lambda _: fl.FedLoRA("stack", padding="counts"),
    "a loss by hand": lambda _: fit_clients(fl.QFedAvg(1.0, 1.0), ByHand(0.1), ONE),
    "two metrics of a name": lambda _: score(fl.ClientMetrics(), fl.ClientMetrics(lambda *_: 1.0)),
    "no tensors to compare": lambda _: score(fl.ClientMetrics()),
    "two algorithms": lambda _: train(fl.FedAvg(), fl.FedProx(0.1)),
    "two observers": lambda _: train(fl.FedAvg(), UpdateNorms(), UpdateNorms()),
    "an observer alone": lambda _: quiet_trainer(callbacks=[UpdateNorms()]).fit(Quadratic(0.1), POOLED),
    "models under way": lambda _: train(fl.RADFed(3, 2, sampler=Growing()), clients=4, rounds=3),
    "a sampler": lambda _: Fixed([0], 1).with_clients_per_round(3),
    "an update": lambda _: train(fl.FedAvg(1.0, exchange=Breaks()), clients=1),
    "results": lambda _: train(fl.Federated(1.0, schedule=Leaves())),
    "a tensor of two": lambda _: train(fl.FedAvg(1.0, exchange=[parts.PersonalParameters(each) for each in "w*"])),
    "a loss": lambda _: parts.FairMean(1.0, parts.MeasuredLoss()).weight_of(result(loss=-1.5, summed_lr=[0.1])),
    "a cluster": lambda _: parts.Clusters(number=3).take_state_up(result().task, {"chosen": torch.tensor(3)}),
    "duals": lambda _: (
        begun(objective=parts.DynamicRegularizer(0.1)).parts[4].load_state_dict({"units": [0.2, "none"]})
    ),
    "other parts": lambda _: parts.Run.resume(
        begun(exchange=parts.Clip(1.0)).algorithm, begun().federation, begun().state_dict()
    ),
    "an aggregate": lambda _: train(fl.FedAvg(aggregation=Short())),
    "two models at once": lambda _: train(fl.FedAsync(history=3, exchange=parts.TopK(0.5))),
    "a name": lambda _: make({"class_path": "fl_lightning.fedavg"}, "callback", fl.FedAvg),
    "a compressed message": lambda _: train(fl.FedAvg(exchange=Shorter())),
    "two compressors": lambda _: train(fl.FedAvg(exchange=[parts.TopK(0.5), parts.TopK(0.25)])),
    "attackers": lambda _: train(fl.RADFed(2, exchange=parts.ALittleIsEnough([0]))),
    "another module": another_module,
    "another exchange": another_exchange,
    "metrics": lambda _: metrics.accuracy(torch.zeros(3, 2), torch.tensor([0.5, 1.5, 2.5])),
    "a step of moves": lambda _: FeatureQPPartitioner(2, step=1.5, step_rule="relative").draw_solution([3.0], [1]),
    "a target": lambda _: fl.TensorDataModule([(X, X)], target=5).outputs_and_targets((X, X), X),
    "a column": a_column,
    "tensors of clients": lambda _: fl.TensorDataModule([(LABELS,)]),
    "no preprocessing": no_preprocessing,
    "a folder": folder_of_checkpoints,
    "a spec": lambda _: table(model=3),
    "a spec by its name": lambda tmp_path: experiment.describe_plan(table(model="$kind", values={"kind": 3}), tmp_path),
    "a spec inside": lambda _: table(datamodule=NO_CLASS),
    "published": lambda _: table(published={"paper": {"scores": {"FedAvg": {"score": 1.0, "deviation": 2}}}}),
    # arguments that depend on each other
    "a limited client that there is not": lambda _: LimitedClassesPartitioner(3, [3]),
    "limited clients alone": lambda _: LimitedClassesPartitioner(3, [0, 1, 2]),
    "a fold": lambda _: ClientSplit(fold=5),
    "a class of partitioners": lambda _: ClientSplit().apply(LABELS, IIDPartitioner),
    "no labels": lambda _: WithinClientSplit().apply([], IID),
    "half a sample": lambda _: fl.SampleSplit().apply(2.5, IID),
    "a mask of test samples": lambda _: fl.SampleSplit(test="official").apply(LABELS, IID, LABELS == 0),
    "nothing to train on": lambda _: fl.SampleSplit(0.0, "official").apply(LABELS, lambda _: [[0]], np.arange(40)),
    "tensors of two lengths": lambda _: fl.TensorDataModule([(X, X), (X, X[:3])]),
    "an array for a graph": lambda _: next(partitioners.diffuse(LABELS, GRAPH, 3)),
    "a text of names in a plot": lambda _: partitioners.plot_label_distributions(PARTITION, LABELS, class_names="abcd"),
    "no client in a plot": lambda _: partitioners.plot_label_distributions(PARTITION, LABELS, max_clients=0),
    "staleness of no client": lambda _: parts.calibrate_staleness(0, 10),
    "durations of no time": lambda _: parts.calibrate_staleness(3, [1.0, 0.0]),
    "a duration of less than no time": lambda _: parts.calibrate_staleness(3, lambda rng: -1.0),
    "the last quantile": lambda _: parts.calibrate_staleness(3, 10, quantile=1.0),
    "no second": lambda _: experiment.run_table(small(), cell_timeout=0),
    "a table of a number": lambda _: experiment.read_table(3),
    "a report of a number": lambda _: report.partition_report(3),
    "results of a number": lambda _: report.experiment_report(3),
    "half a client in a plot": lambda _: report.plot_run(Path(), clients=[0.5]),
    # what clients' steps need
    "a changed loss by hand": lambda _: fit_clients(fl.MOON(1.0), ByHand(0.1), ONE),
    "no linear layer to name": lambda _: train(fl.MOON(1.0, output_layer="head")),
    "a loss of no layer": lambda _: train(fl.MOON(1.0)),
    "Nesterov and dampened momentum": lambda _: fit_clients(fl.FedNova(momentum=0.5), FourGroups(0.1), ONE),
    "no call of a layer": lambda _: fit_clients(fl.MOON(1.0, output_layer="others"), FourGroups(0.1), ONE),
    # warnings
    "a fraction that is one client of ten": lambda _: train(fl.FedAvg(0.1), clients=10),
    "a fraction that is two clients": lambda _: train(fl.FedAvg(0.2), clients=10),
    "a fraction that is one result": lambda _: train(fl.FedBuff(2, 0.1), clients=10),
    "a number that is one client": lambda _: train(fl.FedAvg(1), clients=10),
    "clients left out": lambda _: left_out(1.0, NAN, 1.0),
    "all clients left out": lambda _: left_out(NAN, NAN, max_invalid_rounds=2),
    "a delta that protects no client": lambda _: train(fl.FedAvg(1.0, exchange=privacy(0.5))),
    "a delta that protects clients": lambda _: train(fl.FedAvg(1.0, exchange=privacy(0.4))),
    "no test samples": evaluate_on_nothing,
}


@pytest.mark.parametrize("name", dict.fromkeys([*ERRORS, *MESSAGES]))
def test_errors(name: str, tmp_path: Path) -> None:
    assert told(partial(ERRORS[name], tmp_path), tmp_path) == MESSAGES[name]


def test_first_lines_of_a_fit(caplog: pytest.LogCaptureFixture) -> None:
    partitioner = partitioners.ExplicitPartitioner([[0, 1], [2, 3, 4], [5, 6]])
    ones = torch.ones(9, dtype=torch.float64)
    split = fl.SampleSplit(val=0.0, test=0.0)
    data = TorchDatasetDataModule(TensorDataset(ones, ones), partitioner, split=split, targets=LABELS[:9])
    with caplog.at_level("INFO"):
        quiet_trainer(max_epochs=1, callbacks=[fl.FedAvg(2, executor=Own())]).fit(Quadratic(0.1), data)
    assert [record.getMessage() for record in caplog.records if "/fl_lightning/" in record.pathname] == [
        "FedAvg(clients_per_round=2, executor=Own())",
        "3 clients train (7 samples), none validates and none tests; 2 train in each round. "
        "2 of 9 samples belong to no client.",
        "Clients train by Own.",
    ]
