"""What help and completion show of constructors that hand arguments on, and the guard against hidden packages."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pytest
from fl_lightning.signatures import ShowsSignature
from torch import Tensor

import datamodules
import fl_lightning
from datamodules import CIFAR10DataModule, DigitsDataModule
from fl_lightning import FedAdam, FedAvg, FederatedCheckpoint, FedProx, FedYogi, QFedAvg, parts
from fl_lightning.callbacks import ClientMetrics
from fl_lightning.diagnostics import UpdateNorms
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner
from fl_lightning.parts import (
    Adaptive,
    ServerOptimizer,
    Synchronous,
    SynchronousAlgorithm,
    UniformSampler,
    WeightedMean,
)


class Some(TypedDict, total=False):
    shown: int


class Base(ShowsSignature):
    def __init__(self, first: int = 1, *, shown: int = 2, hidden: int = 3) -> None: ...


class Chosen(Base):
    def __init__(self, own: str, **options: Unpack[Some]) -> None: ...


class Any_(Base):
    def __init__(self, own: str, **options: object) -> None: ...


class Heir(Chosen):
    pass


class Open(ShowsSignature):
    def __init__(self, a: int, **rest: int) -> None: ...


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Chosen, "(own: 'str', *, shown: 'int' = 2)"),
        (Heir, "(own: 'str', *, shown: 'int' = 2)"),
        (Any_, "(own: 'str', *, first: 'int' = 1, shown: 'int' = 2, hidden: 'int' = 3)"),
        (Open, "(a: 'int', **rest: 'int')"),
    ],
)
def test_options_are_those_that_a_base_class_takes(kind: type, text: str) -> None:
    assert str(inspect.signature(kind)).removesuffix(" -> 'None'") == text


@pytest.mark.parametrize(
    "name", [name for name in fl_lightning.__all__ if inspect.isclass(getattr(fl_lightning, name))]
)
def test_every_argument_that_is_shown_is_taken(name: str) -> None:
    cls = getattr(fl_lightning, name)
    if issubclass(cls, fl_lightning.AggregationCallback):
        shown = inspect.signature(cls).parameters
        assert {"clients_per_round", "local_epochs", "executor", "seed", "exchange"} <= set(shown)
        assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in shown.values())
        # an unknown name is refused, a shown one is not; the values are their defaults
        given = {key: p.default for key, p in shown.items() if p.default is not inspect.Parameter.empty}
        needed = {key: 2 for key, p in shown.items() if p.default is inspect.Parameter.empty}
        if not inspect.isabstract(cls) and cls is not fl_lightning.AggregationCallback:
            cls(**needed, **given)


def test_data_modules_show_the_batch_size() -> None:
    shown = inspect.signature(CIFAR10DataModule).parameters
    assert {"batch_size", "split", "shuffle"} <= set(shown)


@pytest.mark.parametrize(
    ("rule", "named"), [("adam", FedAdam), ("yogi", FedYogi), ("adagrad", fl_lightning.FedAdagrad)]
)
def test_the_server_optimizer_has_the_defaults_of_the_named_algorithm(rule: str, named: type) -> None:
    adaptive = Adaptive(rule)  # type: ignore[arg-type]
    shown = inspect.signature(named).parameters
    for name in ("beta1", "tau", "v0", "bias_correction"):
        assert getattr(adaptive, name) == shown[name].default
    assert adaptive.lr == shown["server_lr"].default


def test_splits_and_samplers_are_importable_from_the_top() -> None:
    for name in ("ClientSplit", "SampleSplit", "WithinClientSplit", "UniformSampler", "ImportanceSampler"):
        assert name in fl_lightning.__all__
        assert getattr(fl_lightning, name).__name__ == name


def test_a_folder_that_hides_datamodules_is_named(tmp_path: Path) -> None:
    (tmp_path / "datamodules").mkdir()
    (tmp_path / "datamodules" / "__init__.py").touch()
    (tmp_path / "script.py").write_text("import fl_lightning\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"`import datamodules` finds {tmp_path / 'datamodules'}, which hides the package" in done.stderr
    # a folder without a package hides none that lies on Python's path
    (tmp_path / "datamodules" / "__init__.py").unlink()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    )
    assert "hides the package" not in done.stderr


def public_classes() -> dict[str, type]:
    """Return the classes that the packages export and whose constructors take arguments by name."""
    packages = [fl_lightning, datamodules, *(import_module(f"fl_lightning.{room}") for room in ROOMS)]
    exported = {name: getattr(package, name) for package in packages for name in package.__all__}
    classes = {name: cls for name, cls in exported.items() if inspect.isclass(cls) and not is_protocol(cls)}
    return {name: cls for name, cls in classes.items() if name not in MADE_BY_THE_LIBRARY}


ROOMS = ("callbacks", "data", "diagnostics", "executors", "experiment", "models", "partitioners", "parts", "report")
MADE_BY_THE_LIBRARY = {
    *("ArrivalRecord", "CannotVectorize", "ClientResult", "ClientStates", "FederatedLoop", "Federation", "Findings"),
    *("LabelPlot", "PartitionReport", "PartitionStatistics", "PartitionSummary", "Payload", "ReportPage"),
    *("RoundReport", "RunPicture", "RunningMean", "Server", "Task", "Traffic"),
}


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


@pytest.mark.parametrize("name", sorted(public_classes()))
def test_a_misspelt_argument_is_named_by_every_class(name: str) -> None:
    cls = public_classes()[name]
    shown = [each.name for each in inspect.signature(cls).parameters.values() if each.kind in NAMED]
    takes = f" It takes {', '.join(f'`{each}`' for each in shown)}." if shown else ""
    with pytest.raises(TypeError, match=f"^{name} has no argument `zzz`.{takes}$"):
        cls(zzz=1)
    for right in shown:
        if len(right) > 3:  # less is close to nothing
            with pytest.raises(TypeError, match=f"^{name} has no argument `{right}_`. Did you mean `{right}`\\?$"):
                cls(**{f"{right}_": 1})


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class TakesItsOwn(FedAvg):
    def __init__(self, **options: Any) -> None:
        self.mine = options.pop("mine", 0)
        super().__init__(**options)


class WithoutConstructor(ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return aggregate


def test_own_classes_may_take_options_of_any_name() -> None:
    assert TakesItsOwn(mine=3, local_epochs=2).mine == 3
    with pytest.raises(TypeError, match=r"^TakesItsOwn has no argument `local_epoch`. Did you mean `local_epochs`\?$"):
        TakesItsOwn(mine=3, local_epoch=2)


def test_a_class_without_a_constructor_takes_nothing() -> None:
    assert str(inspect.signature(WithoutConstructor)) == "()"
    with pytest.raises(TypeError, match=r"^WithoutConstructor\(\) takes no arguments$"):
        WithoutConstructor(3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^WithoutConstructor has no argument `x`.$"):
        WithoutConstructor(x=3)


def test_an_object_that_can_be_called_shows_what_it_is_called_with() -> None:
    partitioner = DirichletPartitioner(5, 0.3)
    assert [*inspect.signature(partitioner).parameters] == ["labels"]
    assert [*inspect.signature(DirichletPartitioner).parameters][:2] == ["num_clients", "alpha"]
    assert repr(pickle.loads(pickle.dumps(partitioner))) == repr(copy.deepcopy(partitioner)) == repr(partitioner)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedProx(muu=0.1), "^FedProx has no argument `muu`. Did you mean `mu`\\?$"),  # type: ignore[call-arg]
        (
            lambda: FederatedCheckpoint(monitr="val_acc"),
            "^FederatedCheckpoint has no argument `monitr`. Did you mean `monitor`\\?$",
        ),
        (lambda: FedAvg(5, local_step=3), "^FedAvg has no argument `local_step`. Did you mean `local_steps`\\?$"),  # type: ignore[call-arg]
        (
            lambda: FedAvg(5, xyz=3),  # type: ignore[call-arg]
            "^FedAvg has no argument `xyz`. It takes `clients_per_round`, .*`local_epochs`, .*`seed`.$",
        ),
        (
            lambda: DigitsDataModule(batchsize=8),  # type: ignore[call-arg]
            "^DigitsDataModule has no argument `batchsize`. Did you mean `batch_size`\\?$",
        ),
        (
            lambda: CIFAR10DataModule(".", crop_probabilty=0.5),
            "^CIFAR10DataModule has no argument `crop_probabilty`. Did you mean `crop_probability`\\?$",
        ),
    ],
)
def test_an_unknown_argument_is_refused_in_the_name_of_the_class_that_was_called(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make()


# ---- what was meant ----


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: FedAvg(lr=0.1),  # type: ignore[call-arg]
            "FedAvg has no argument `lr`. The clients' learning rate is that of your module's optimizer; the server's "
            "is `server_lr`.",
        ),
        (
            lambda: fl_lightning.RADFed(3, learning_rate=0.1),  # type: ignore[call-arg]
            "RADFed has no argument `learning_rate`. The clients' learning rate is that of your module's optimizer.",
        ),
        (
            lambda: FedProx(mu=0.1, epochs=5),  # type: ignore[call-arg]
            "FedProx has no argument `epochs`. Rounds are `Trainer(max_epochs=...)`; a client's passes over its data "
            "are `local_epochs`.",
        ),
        (
            lambda: FedAvg(batch_size=5),  # type: ignore[call-arg]
            "FedAvg has no argument `batch_size`. It belongs to the data module: `batch_size`.",
        ),
        (
            lambda: FedAvg(num_clients=5),  # type: ignore[call-arg]
            "FedAvg has no argument `num_clients`. It belongs to the partitioner: `num_clients`. Those that train in a "
            "round are `clients_per_round`.",
        ),
        (
            lambda: FedAvg(fraction=0.1),  # type: ignore[call-arg]
            "FedAvg has no argument `fraction`. Did you mean `clients_per_round`? A float is a fraction.",
        ),
        (
            lambda: FedProx(alpha=0.1),  # type: ignore[call-arg]
            "FedProx has no argument `alpha`. Did you mean `mu`?",
        ),
        (
            lambda: fl_lightning.FedDyn(mu=0.1),  # type: ignore[call-arg]
            "FedDyn has no argument `mu`. Did you mean `alpha`?",
        ),
        (
            lambda: DirichletPartitioner(num_partitions=10, alpha=0.1),  # type: ignore[call-arg]
            "DirichletPartitioner has no argument `num_partitions`. Did you mean `num_clients`?",
        ),
        (
            lambda: DirichletPartitioner(10, beta=0.1),  # type: ignore[call-arg]
            "DirichletPartitioner has no argument `beta`. Did you mean `alpha`?",
        ),
        (
            lambda: parts.DifferentialPrivacy(1.0, noise=1.0, delta=0.01),  # type: ignore[call-arg]
            "DifferentialPrivacy has no argument `noise`. Did you mean `noise_multiplier` or `noise_cohort`?",
        ),
        (
            lambda: ClientMetrics(mse=len),  # type: ignore[call-arg]
            "ClientMetrics has no argument `mse`. Give the function as `metric` and its name as `name`.",
        ),
        (
            lambda: ClientMetrics(xyz=3),  # type: ignore[call-arg]
            "ClientMetrics has no argument `xyz`. It takes `metric`, `name`.",
        ),
        (
            lambda: DigitsDataModule(num_clients=5),  # type: ignore[call-arg]
            "DigitsDataModule has no argument `num_clients`. It belongs to the partitioner: `num_clients`.",
        ),
        (
            lambda: fl_lightning.models.MLPClassifier(3, learning_rate=0.1),  # type: ignore[call-arg]
            "MLPClassifier has no argument `learning_rate`. Did you mean `lr`?",
        ),
    ],
)
def test_words_of_other_libraries_are_known(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(TypeError) as told:
        make()
    assert str(told.value) == sentence


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (FedProx, "FedProx needs `mu` (Weight of the proximal term, at least 0)."),
        (QFedAvg, "QFedAvg needs `q` (Weight of clients with large losses, at least 0: 0 is FedAvg)."),
        (
            lambda: FedAvg(5, 1),  # type: ignore[misc]
            "FedAvg takes `clients_per_round` by position, all else by name, such as local_epochs=1.",
        ),
        (
            lambda: FedProx(0.1, 5, 2),  # type: ignore[misc]
            "FedProx takes `mu` and `clients_per_round` by position, all else by name, such as local_epochs=2.",
        ),
        (
            lambda: DigitsDataModule(IIDPartitioner(2), 16),
            "DigitsDataModule takes `partitioner` by position, all else by name, such as batch_size=16.",
        ),
        (
            lambda: IIDPartitioner(2, 0, 1),  # type: ignore[call-arg]
            "IIDPartitioner takes `num_clients` and `seed` and no more, got 3 arguments.",
        ),
        (lambda: UpdateNorms(2), "UpdateNorms takes no arguments, got 1."),  # type: ignore[call-arg]
        (lambda: FedAvg(mu=0.1), "FedAvg has no argument `mu`. `mu` belongs to FedProx."),  # type: ignore[call-arg]
        (lambda: FedAvg(q=1), "FedAvg has no argument `q`. `q` belongs to QFedAvg."),  # type: ignore[call-arg]
        (
            lambda: FedAvg(speeds=1),  # type: ignore[call-arg]
            "FedAvg has no argument `speeds`. `speeds` belongs to FedAsync, FedBuff and DynamicWeightFedBuff.",
        ),
        (lambda: FedProx(clients_per_round=5), "FedProx needs `mu` (Weight of the proximal term, at least 0)."),  # type: ignore[call-arg]
        (
            lambda: SynchronousAlgorithm(  # type: ignore[call-arg]
                sampler=UniformSampler(2), schedule=Synchronous(), aggregation=WeightedMean()
            ),
            "SynchronousAlgorithm needs `server` (Moves the server's model: FedAvg's is `Mixing()`, which takes the "
            "aggregate as it is).",
        ),
        (fl_lightning.Clip, "Clip needs `norm` (Largest norm, greater than 0)."),
        (
            DirichletPartitioner,
            "DirichletPartitioner needs `num_clients` (Number of clients, K) and `alpha` (Concentration of the prior: "
            "near 0 gives one class to a client, large values give each the same mix).",
        ),
        (
            lambda: DirichletPartitioner(100),  # type: ignore[call-arg]
            "DirichletPartitioner needs `alpha` (Concentration of the prior: near 0 gives one class to a client, large "
            "values give each the same mix).",
        ),
    ],
)
def test_a_missing_argument_is_named_with_what_it_is(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(TypeError) as told:
        make()
    assert str(told.value) == sentence


def test_a_class_of_ones_own_needs_what_its_base_class_needs() -> None:
    class Mine(FedProx):
        pass

    class Fixed(FedProx):
        def __init__(self) -> None:
            super().__init__(mu=0.5)

    with pytest.raises(TypeError, match=r"^Mine needs `mu` \("):
        Mine()  # type: ignore[call-arg]
    assert Fixed().mu == 0.5
    assert pickle.loads(pickle.dumps(copy.copy(FedProx(mu=0.25)))).mu == 0.25


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FedProx(5, mu=0.1), "FedProx takes `mu` and `clients_per_round` by position, so 5 is its `mu`, which"),
        (lambda: FedAvg(5, clients_per_round=0.1), "FedAvg takes `clients_per_round` by position, so 5 is its"),
        (lambda: Adaptive("adam", 0.1, rule="yogi"), "so 'adam' is its `rule`, which is given by name as well: 'yogi'"),
    ],
)
def test_an_argument_by_position_and_by_name_is_told_by_its_name(make: Callable[[], object], text: str) -> None:
    with pytest.raises(TypeError) as error:
        make()
    assert text in str(error.value)
    assert str(error.value).endswith("Give all arguments by name.")
