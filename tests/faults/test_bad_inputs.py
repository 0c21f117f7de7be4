"""A catalogue of wrong values, given to every argument of every public constructor of what trains and measures.

Each value is either accepted, because it means something, or refused with a ``TypeError`` or ``ValueError`` that names
the argument. (Those of partitioners, splits and data modules are in ``tests/data/test_wrong_values.py``.)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from faults.catalogue import ACCEPTED, LEFT_OUT, MAKERS, OBJECTS
from helpers.algorithms import Net, data
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from helpers.wrong_values import arguments_of, labels_of, name_of, problems
from lightning.pytorch.callbacks import ModelCheckpoint

import fl_lightning
import fl_lightning.callbacks
import fl_lightning.data
import fl_lightning.diagnostics
import fl_lightning.executors
import fl_lightning.models
import fl_lightning.parts
from fl_lightning import (
    AggregationCallback,
    ClientMetrics,
    FedAsync,
    FedAvg,
    ImportanceSampler,
    Participation,
    RADFed,
    TensorDataModule,
    VirtualClock,
)
from fl_lightning.algorithms.options import argument_names
from fl_lightning.diagnostics import (
    CentralTwin,
    Communication,
    LocalCompute,
    RoundObserver,
    UpdateNorms,
)
from fl_lightning.executors import SequentialExecutor
from fl_lightning.metrics import weighted_f1
from fl_lightning.models import (
    MobileNetV2Classifier,
    ResNet18Classifier,
)
from fl_lightning.parts import (
    LocalObjective,
    MeasuredLoss,
    Mixing,
)


@pytest.mark.parametrize(("make", "right", "argument", "kind"), arguments_of(MAKERS))
def test_a_value_means_something_or_is_refused_by_name(
    make: Callable[..., Any],
    right: dict[str, Any],
    argument: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {label: value for label, value in OBJECTS.items() if label not in LEFT_OUT.get(kind, ())}
    assert not problems(make, right, argument, labels_of(kind, ACCEPTED), values)


def test_the_catalogue_is_complete() -> None:
    modules = (
        fl_lightning,
        fl_lightning.parts,
        fl_lightning.diagnostics,
        fl_lightning.callbacks,
        fl_lightning.executors,
        fl_lightning.models,
    )
    exported = {getattr(module, name) for module in modules for name in module.__all__}
    classes = {thing for thing in exported if inspect.isclass(thing) and not inspect.isabstract(thing)}
    elsewhere = {getattr(fl_lightning.data, name) for name in fl_lightning.data.__all__}  # in the catalogue of data
    without_arguments = {CentralTwin, LocalCompute, UpdateNorms, SequentialExecutor, RoundObserver, LocalObjective}
    without_arguments |= {MeasuredLoss}
    made_by_the_library = {
        *("Algorithm", "ArrivalRecord", "AsynchronousAlgorithm", "ClientResult", "ClientStates", "Federation"),
        *(
            "FederatedLoop",
            "RoundReport",
            "RunningMean",
            "Server",
            "SynchronousAlgorithm",
            "Task",
            "Traffic",
            "Updates",
        ),
    }
    bases_and_others = {
        "Attack",
        "Collusion",
        "Compressor",
        "FairMean",
        "LocalAttack",
        "MeasuredLoss",
        "BackdoorSuccess",
        "ExamplePrivacy",
        "Correction",
        "Part",
        "Payload",
        "Exchange",
        "LocalClient",
        "CannotVectorize",
        "Classifier",
        "AggregationCallback",
    }
    large = {ResNet18Classifier, MobileNetV2Classifier}
    rest = {cls.__name__ for cls in classes - set(MAKERS) - elsewhere - without_arguments - large}
    assert rest <= made_by_the_library | bases_and_others
    for make, (_, kinds) in MAKERS.items():
        inherits = inspect.isclass(make) and issubclass(make, AggregationCallback)  # its options are its bases'
        named = argument_names(make) if inherits else set(inspect.signature(make).parameters)
        if make is fl_lightning.FederatedCheckpoint:
            named -= set(inspect.signature(ModelCheckpoint).parameters)  # Lightning's own
        assert named - set(kinds) <= {"self", "options", "kwargs", "arrivals", "adaptive"}, name_of(make)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ClientMetrics("f1", weighted_f1), "`metric` must be a function, got 'f1'. The name of the metric is"),
        (
            lambda: FedAvg(sampler="uniform"),
            "`sampler` must be a ClientSampler of fl_lightning.parts, such as .*, got 'uniform'",
        ),
        (
            lambda: FedAvg(0.1, participation=0.5),
            "`participation` must be a Participation of fl_lightning.parts, such as",
        ),
        (lambda: FedAsync(clock=3), "`clock` must be a VirtualClock, got 3"),
        (lambda: FedAsync(clock=VirtualClock), "got the class VirtualClock. Call it: VirtualClock"),
        (
            lambda: RADFed(3, server="adam"),
            "`server` must be a ServerOptimizer of fl_lightning.parts, such as .*, got 'adam'",
        ),
        (lambda: FedAsync(rho=-1), "`rho` must be a finite number of at least 0, got -1"),
        (lambda: Mixing("fast"), "`lr` must be a finite number greater than 0, got 'fast'"),
        (lambda: FedAvg(server_lr="fast"), "`server_lr` must be a finite number greater than 0, got 'fast'"),
        (lambda: FedAvg(server_lr=lambda t: 1 / t), r"`server_lr` is a function that fails for 0: ZeroDivisionError"),
        (lambda: FedAvg(server_lr=lambda t: -t), r"`server_lr\(0\)` must be a finite number greater than 0, got 0"),
        (lambda: FedAsync(staleness=lambda d: 0), r"`staleness\(0\)` must be a finite number greater than 0, got 0"),
        (lambda: ImportanceSampler(3, parameters="head"), r"must be a sequence of texts, got 'head'. Give \['head'\]"),
        (lambda: Participation(drop_stragglers="yes"), "`drop_stragglers` must be True or False, got 'yes'"),
        (lambda: Participation(available=np.array([True, False])), r"in \(0, 1\], got <ndarray .* give a function"),
        (lambda: Communication("a"), "`target` must be a finite number, got 'a'"),
        (lambda: Communication("val_acc", 0.9), "`monitor` must be a string, got 0.9"),
        (lambda: VirtualClock(online=[(0, 1)]), "`online` must be a Mapping, .* windows .from, until. for each client"),
        (lambda: VirtualClock(online={"a": [(0, 1)]}), "`online` must be of clients, whole numbers from 0, got 'a'"),
        (lambda: VirtualClock(online={0: [(0, float("nan"))]}), "`online` must give each client windows"),
        (lambda: VirtualClock(online={0: (0, 1)}), "`online` must give each client windows"),
        (lambda: ResNet18Classifier(groups=True), "`groups` must be a whole number of at least 1, got True"),
        (lambda: ResNet18Classifier(groups=3), "`groups` must divide 64"),
        (lambda: MobileNetV2Classifier(weights=None, dropout="no"), "`dropout` must be a number in .0, 1., got 'no'"),
        (lambda: MobileNetV2Classifier(weights=3), "`weights` must be a path, .* got 3"),
        (lambda: MobileNetV2Classifier(weights=None, image_size=1.5), "`image_size` must be a whole number"),
        (lambda: MobileNetV2Classifier(weights=None, reinitialize_tail="no"), "`reinitialize_tail` must be True or Fa"),
    ],
)
def test_arguments_in_the_wrong_place_or_form(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


# ---- what only a fit can know ----


def fit(callback: Any, *others: Any, rounds: int = 2, clients: int = 6) -> L.Trainer:
    data = TensorDataModule(quadratic_clients([1.0] * clients, [float(k) for k in range(clients)]), batch_size=None)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others])
    trainer.fit(Quadratic(0.5), datamodule=data)
    return trainer


@pytest.mark.parametrize(
    ("available", "error", "message"),
    [
        (
            [True, False, True, False, False, False],
            TypeError,
            r"`available\(0\)` must be integers, got a mask .*flatno",
        ),
        ([0.5, 1.5], TypeError, r"`available\(0\)` must be integers, got float64"),
        ([[0, 1]], ValueError, r"`available\(0\)` must be 1-D"),
        ([0, 6], ValueError, r"`available\(0\)` must give clients from 0 to 5, got 0 to 6"),
    ],
)
def test_clients_that_can_be_reached_are_indices(available: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fit(FedAvg(2, participation=Participation(available=lambda t: available)))


def test_windows_are_of_clients_that_exist() -> None:
    with pytest.raises(ValueError, match="`online` must name training clients, 0 to 5, got 99"):
        fit(FedAsync(2, clock=VirtualClock(online={99: [(0, 1)]})))


def test_a_monitor_that_is_never_logged_is_an_error_or_told() -> None:
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(2), Communication(0.9, "val_accuracy")])
    with pytest.raises(ValueError, match="`monitor` must be a metric that the module logs, got 'val_accuracy'; there "):
        trainer.fit(Net(), datamodule=data())
    with pytest.warns(UserWarning, match="'val_acc' was never logged, since there was no validation"):
        fit(FedAvg(2), Communication(0.9))
