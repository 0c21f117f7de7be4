"""Messages show the values that a reader needs to find the mistake: each message is provoked once.

A new message with a value in it has a line here. Sentences may change; the values may not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.algorithms import public
from helpers.small_table import small
from helpers.tiny_files import set_up
from helpers.toys import Fixed, Quadratic, fit_clients, quadratic_clients
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning import experiment, metrics, partitioners, parts
from fl_lightning.data import ClientDatasetsModule
from fl_lightning.datamodules import (
    CIFAR10DataModule,
    DMOZDataModule,
    TableDataModule,
    TorchDatasetDataModule,
)
from fl_lightning.diagnostics import UpdateNorms
from fl_lightning.executors import Executor, SequentialExecutor, make_executor
from fl_lightning.experiment.build import make
from fl_lightning.partitioners import IIDPartitioner, TopicGraph
from fl_lightning.testing.fits import quiet_trainer

X = torch.zeros(4, dtype=torch.float64)
LABELS = np.arange(40) % 4


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


def one_without_samples() -> None:
    run = begun(schedule=parts.FineTuning())
    run.federation.sizes[1] = 0
    next(run.algorithm.schedule.finish(run.server))


def result(**values: Any) -> parts.ClientResult:
    return parts.ClientResult(parts.Task(0, 4, 1), X, X + 1, 1, **values)


def saved(tmp_path: Path) -> Path:
    torch.save({"callbacks": {}, "state_dict": {}}, tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


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
    trainer.fit(Quadratic(0.1, [0.0, 0.0]), datamodule=fl.TensorDataModule(quadratic_clients([1.0], [1.0])))


def another_exchange(tmp_path: Path) -> None:
    trainer = train(fl.FedAvg(1.0, exchange=parts.TopK(0.5)))
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    train(fl.FedAvg(1.0, exchange=parts.TopK(0.5, error_feedback=False)), ckpt_path=tmp_path / "first.ckpt")


def a_column(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x,size\n1,2\n2,big\n")
    data = TableDataModule(tmp_path / "rows.csv", "size", partitioner=IIDPartitioner(2), regression=True)
    data.setup("fit")


def a_file_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    train(fl.FedAvg(), fl.FederatedCheckpoint(dirpath=tmp_path / "taken"), enable_checkpointing=True)


def taken(tmp_path: Path) -> Path:
    (tmp_path / "taken").write_text("")
    return tmp_path / "taken"


class ByHand(Quadratic):
    automatic_optimization = False


class Lists(fl.TensorDataModule):
    """Compares a list with a text."""

    def outputs_and_targets(self, batch: Any, outputs: Any) -> Any:
        return [1], "x"


def step(module: Any, callback: fl.AggregationCallback) -> None:
    fit_clients(callback, module, quadratic_clients([1.0], [1.0]))


def score(*metric: fl.ClientMetrics) -> None:
    clients = quadratic_clients([1.0], [1.0])
    data = Lists(clients, val=[*clients])
    quiet_trainer(callbacks=[*metric]).validate(Tested(0.1), data, verbose=False)


NO_CLASS = {"class_path": "torch.optim.SGD", "init_args": {"inner": {"class_path": "torch.nn.Linear", "init_args": 3}}}

#: What is done, and what its error shows.
ERRORS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "an executor by name": (
        lambda _: make_executor("sequential", 3),
        ["'sequential'", "got 3", '"vectorized" or "auto"'],
    ),
    "an executor": (lambda _: make_executor(SequentialExecutor(), 3), ["SequentialExecutor", "VectorizedExecutor(3)"]),
    "channels": (
        lambda _: CIFAR10DataModule("x", IIDPartitioner(2), mean=[0.1, 0.2]),
        ["`mean`", "3 channels", "[0.1, 0.2]"],
    ),
    "windows of a client": (lambda _: fl.VirtualClock(online={0: 5}), ["`online` must be a list"]),
    "topics": (lambda _: TopicGraph(5, []), ["`topics` must be a list"]),
    "windows": (lambda _: fl.VirtualClock(online={2: [(3, 1)]}), ["[[3, 1]]", "client 2"]),
    "a trace": (trace, ["trace.csv", "[0, 2]"]),
    "speeds": (
        lambda _: train(fl.FedAsync(clock=fl.VirtualClock(speeds=[1.0, 2.0, 3.0]))),
        ["`speeds`", "2 clients", "got 3"],
    ),
    "an empty fleet": (
        lambda _: train(fl.FedBuff(3, clock=fl.VirtualClock(online={0: [(0, 1)], 1: [(0, 1)]}, delay=0.7))),
        ["has 0 of 3 results"],
    ),
    "a file for states": (lambda tmp_path: fl.FedAvg(state_dir=taken(tmp_path)), ["`state_dir`", "/taken."]),
    "settings of an aggregation": (
        lambda _: fl.FedAvg(weighting="uniform", aggregation=parts.Median()),
        ["`weighting='uniform'`", "`aggregation=Median("],
    ),
    "a number and a sampler": (
        lambda _: fl.FedAvg(3, sampler=fl.UniformSampler(2)),
        ["got 3 and UniformSampler(clients_per_round=2"],
    ),
    "a sampler of arrivals": (
        lambda _: fl.Federated(1, schedule=parts.Asynchronous(fl.VirtualClock()), sampler=fl.UniformSampler(2)),
        ["`sampler` cannot be UniformSampler("],
    ),
    "a class for a part": (lambda _: fl.FedAvg(1, sampler=fl.UniformSampler), ["Call it: UniformSampler("]),
    "a choice": (lambda _: fl.FedAvg(weighting="x"), ["`weighting` of FedAvg", "'samples', 'uniform'", "got 'x'"]),
    "history and speeds": (lambda _: fl.FedAsync(history=3, speeds=[1.0]), ["combined with `speeds`"]),
    "a rate and a server": (
        lambda _: fl.FedBuff(server=parts.Momentum(), server_lr=0.5),
        ["`server_lr=0.5`", "give Momentum its `lr`"],
    ),
    "counts of stacked factors": (lambda _: fl.FedLoRA("stack", padding="counts"), ['`mode="stack"`']),
    "a loss by hand": (lambda _: step(ByHand(0.1), fl.QFedAvg(1.0, 1.0)), ["ByHand optimises manually"]),
    "two metrics of a name": (
        lambda _: score(fl.ClientMetrics(), fl.ClientMetrics(lambda *_: 1.0)),
        ["have the `name` 'acc'"],
    ),
    "no tensors to compare": (lambda _: score(fl.ClientMetrics()), ["got a list and a str"]),
    "no checkpoint": (lambda tmp_path: fl.load_preprocessing(tmp_path / "none.ckpt"), ["not found", "none.ckpt"]),
    "two algorithms": (lambda _: train(fl.FedAvg(), fl.FedProx(0.1)), ["FedAvg and FedProx"]),
    "two observers": (
        lambda _: train(fl.FedAvg(), UpdateNorms(), UpdateNorms()),
        ["Two callbacks UpdateNorms", "'fed/update_norm'"],
    ),
    "an observer alone": (
        lambda _: quiet_trainer(callbacks=[UpdateNorms()]).fit(Quadratic(0.1), DataLoader(TensorDataset(X, X))),
        ["UpdateNorms"],
    ),
    "models under way": (
        lambda _: train(fl.RADFed(3, 2, sampler=Growing()), clients=4, rounds=3),
        ["must stay 2", "2 rounds", "got 3"],
    ),
    "a sampler": (lambda _: Fixed([0], 1).with_clients_per_round(3), ["Fixed"]),
    "an update": (lambda _: train(fl.FedAvg(1.0, exchange=Breaks()), clients=1), ["Breaks()", "of client 0's"]),
    "results": (lambda _: train(fl.Federated(1.0, schedule=Leaves())), ["`Leaves.play`"]),
    "a tensor of two": (
        lambda _: train(fl.FedAvg(1.0, exchange=[parts.PersonalParameters("w"), parts.PersonalParameters("*")])),
        ["PersonalParameters(pattern='w'), PersonalParameters(pattern='*')", "'w'. Leave"],
    ),
    "a tensor": (lambda _: train(fl.FedAvg(exchange=parts.PersonalParameters("v"))), ["`pattern`", "w; got ['v']"]),
    "a client without data": (lambda _: one_without_samples(), ["client 1 ", "round 3."]),
    "a loss": (
        lambda _: parts.FairMean(1.0, parts.MeasuredLoss()).weight_of(result(loss=-1.5, summed_lr=[0.1])),
        ["got -1.5 from client 4"],
    ),
    "a share": (
        lambda _: parts.StalenessMixing(0.6, lambda late: 1.0 + late).merge(X, [result(staleness=1)]),
        ["`staleness(1)`", "0.6 * 2."],
    ),
    "a cluster": (
        lambda _: parts.Clusters(number=3).take_state_up(result().task, {"chosen": torch.tensor(3)}),
        ["Client 4 ", "cluster 3,", "are 3 from"],
    ),
    "clusters": (
        lambda _: parts.Clusters(number=3).load_state_dict({"models": [X, X]}),
        ["checkpoint's 2,", "got 3."],
    ),
    "duals": (
        lambda _: begun(objective=parts.DynamicRegularizer(0.1)).parts[4].load_state_dict({"units": [0.2, "none"]}),
        ["[0.2, 'none'], got [0.1, 'size']"],
    ),
    "other parts": (
        lambda _: parts.Run.resume(begun(exchange=parts.Clip(1.0)).algorithm, begun().federation, begun().state_dict()),
        ["parts Chain, BufferExchange, Uni", "run Chain, BufferExchange, Clip, Uni"],
    ),
    "another layout": (
        lambda _: parts.Run.go_on(begun(), replace(begun().federation, layout=parts.Layout.of_parameters(1, 1))),
        ["1 values in all", "1 values."],
    ),
    "an aggregate": (lambda _: train(fl.FedAvg(aggregation=Short())), ["`Short.", "shape (1,)", "shape (2,)"]),
    "two models at once": (lambda _: train(fl.FedAsync(history=3, exchange=parts.TopK(0.5))), ["`history`", "TopK("]),
    "a name": (
        lambda _: make({"class_path": "fl_lightning.fedavg"}, "callback", fl.FedAvg),
        ["mean fl_lightning.FedAvg?"],
    ),
    "a compressed message": (lambda _: train(fl.FedAvg(exchange=Shorter())), ["`Shorter.compress`", "shape (1,)"]),
    "two compressors": (
        lambda _: train(fl.FedAvg(exchange=[parts.TopK(0.5), parts.TopK(0.25)])),
        ["TopK(fraction=0.5", "TopK(fraction=0.25"],
    ),
    "secure sums": (
        lambda _: train(fl.RADFed(2, exchange=parts.SecureAggregation(1.0))),
        ["SecureAggregation(", "Redistribution("],
    ),
    "whole models": (
        lambda _: train(fl.FedDF(nn.Linear(1, 1), public(), exchange=parts.PersonalParameters("w"))),
        ["PersonalParameters(pattern='w')", "EnsembleDistillation"],
    ),
    "a public module": (
        lambda _: train(fl.FedDF(nn.Linear(1, 1), public())),
        ["['w']"],
    ),
    "attackers": (
        lambda _: train(fl.RADFed(2, exchange=parts.ALittleIsEnough([0]))),
        ["Redistribution(", "ALittleIsEnough("],
    ),
    "several batches a step": (
        lambda _: train(fl.FedSAM(0.1, 1.0), accumulate_grad_batches=2),
        ["got 2 and 1"],
    ),
    "a momentum of all": (
        lambda _: train(fl.Mime(1.0, exchange=parts.PersonalParameters("*"))),
        ["SharedMomentum("],
    ),
    "another module": (another_module, ["1 values", "2 values"]),
    "another exchange": (another_exchange, ["TopK", "['kept']", "[]"]),
    "metrics": (
        lambda _: metrics.accuracy(torch.zeros(3, 2), torch.tensor([0.5, 1.5, 2.5])),
        ["(3, 2)", "(3,)", "float32 from 0.5 to 2.5"],
    ),
    "a count": (lambda _: fl.FedAvg(local_epochs=0), ["`local_epochs`", "whole number in [1, inf)", "got 0"]),
    "a step of moves": (
        lambda _: partitioners.FeatureQPPartitioner(2, step=1.5, step_rule="relative").draw_solution([3.0], [1]),
        ["got 1.5"],
    ),
    "a target": (
        lambda _: fl.TensorDataModule([(X, X)], target=5).outputs_and_targets((X, X), X),
        ["which has 2", "got 5"],
    ),
    "a column": (a_column, ["`label` column 'size'"]),
    "pages": (lambda tmp_path: set_up(DMOZDataModule(tmp_path)), ["content.rdf.u8", "Put DMOZ's last dump"]),
    "a client without samples": (
        lambda _: partitioners.c_score(np.array([[1, 2], [0, 0]])),
        ["client 1 has none"],
    ),
    "data sets of clients": (lambda _: ClientDatasetsModule({"a": LABELS}), ["`clients`", "'a'"]),
    "tensors of clients": (lambda _: fl.TensorDataModule([(LABELS,)]), ["`clients[0]`", "shape (40,)"]),
    "no preprocessing": (lambda tmp_path: fl.load_preprocessing(saved(tmp_path)), ["last.ckpt"]),
    "a folder": (a_file_for_a_folder, ["`dirpath`", "taken'"]),
    "a spec": (lambda _: table(model=3), ["`model`", "3"]),
    "a spec by its name": (
        lambda tmp_path: experiment.describe_plan(table(model="$kind", values={"kind": 3}), tmp_path),
        ["`model`", "got 3"],
    ),
    "a spec inside": (lambda _: table(datamodule=NO_CLASS), ["`datamodule.inner`", "3"]),
    "published": (
        lambda _: table(published={"paper": {"scores": {"FedAvg": {"score": 1.0, "deviation": 2}}}}),
        ["`published.paper.scores.FedAvg`", "deviation"],
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Path) -> None:
    provoke, values = ERRORS[name]
    with pytest.raises((ValueError, TypeError, RuntimeError, OSError, AttributeError, FloatingPointError)) as error:
        provoke(tmp_path)
    message = str(error.value)
    assert [value for value in values if value not in message] == [], message


def test_first_lines_of_a_fit(caplog: pytest.LogCaptureFixture) -> None:
    partitioner = partitioners.ExplicitPartitioner([[0, 1], [2, 3, 4], [5, 6]])
    ones = torch.ones(9, dtype=torch.float64)
    split = fl.SampleSplit(val=0.0, test=0.0)
    data = TorchDatasetDataModule(TensorDataset(ones, ones), partitioner, split=split, targets=LABELS[:9])
    with caplog.at_level("INFO"):
        quiet_trainer(max_epochs=1, callbacks=[fl.FedAvg(2, executor=Own())]).fit(Quadratic(0.1), data)
    told = "\n".join(record.getMessage() for record in caplog.records)
    values = ["FedAvg(clients_per_round=2", "3 clients train (7 samples)", "2 train in each round"]
    values += ["2 of 9 samples", "by Own"]
    assert [value for value in values if value not in told] == [], told


def test_a_fraction_that_leaves_one_client_a_round_is_told() -> None:
    with pytest.warns(UserWarning, match=r"1 of 2 clients .*clients_per_round=0\.4"):
        train(fl.FedAvg(0.4))


def test_an_error_of_a_step_names_round_client_and_batch() -> None:
    class Failing(Quadratic):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if len(batch[0]) == 3:
                raise ValueError("odd")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="odd") as error:
        fit_clients(fl.FedAvg(1.0), Failing(0.1), quadratic_clients([1.0, 1.0], [1.0, 1.0], [2, 3]))
    assert error.value.__notes__ == ["In round 1, client 1, batch: (3,) torch.float64, (3,) torch.float64."]


def test_a_fraction_that_is_one_client_is_told() -> None:
    with pytest.warns(UserWarning, match=r"Only 1 of 10 clients .*clients_per_round=0\.1.*FedAvg"):
        train(fl.FedAvg(0.1), clients=10, rounds=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Only ")
        train(fl.FedAvg(0.2), clients=10, rounds=1)
        train(fl.FedAvg(1), clients=10, rounds=1)


def test_results_that_are_left_out_are_told() -> None:
    clients = quadratic_clients([1.0] * 3, [1.0, float("nan"), 1.0])
    with pytest.warns(UserWarning, match=r"Round 1: .*clients \[1\], .*; 2 others count"):
        fit_clients(fl.FedAvg(1.0), Quadratic(0.1), clients)
    with pytest.raises(FloatingPointError, match=r"of the last 2 rounds.*; None never ends it"):
        fit_clients(fl.FedAvg(1.0, max_invalid_rounds=2), Quadratic(0.1), clients[1:2], 5)


def test_a_delta_that_protects_no_client_is_told() -> None:
    exchange = parts.LocalDifferentialPrivacy(1.0, noise_multiplier=1.0, delta=0.5)
    with pytest.warns(
        UserWarning, match=r"LocalDifferentialPrivacy has delta=0\.5 for 2 clients.* 1 / 2 or.* below 0\.5\."
    ):
        train(fl.FedAvg(1.0, exchange=exchange), rounds=1)


def test_a_test_without_samples_is_told() -> None:
    clients = quadratic_clients([1.0], [1.0])
    trainer = quiet_trainer()
    with pytest.warns(UserWarning, match="no test samples"):
        trainer.test(Tested(0.1), fl.TensorDataModule(clients, val=clients), verbose=False)


class Tested(Quadratic):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.w)

    validation_step = test_step

    def forward(self, x: Any) -> Any:
        return x
