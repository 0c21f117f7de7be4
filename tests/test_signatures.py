"""What help shows of constructors that hand arguments on, and their texts."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from jsonargparse import ArgumentParser

import fl_lightning
from fl_lightning import AggregationCallback, FedAdam, FedAvg, FedYogi
from fl_lightning.datamodules import CIFAR10DataModule, FedProxSyntheticDataModule
from fl_lightning.partitioners import DirichletPartitioner
from fl_lightning.parts import Adaptive, Asynchronous, Clip, Krum, TopK, VirtualClock


def test_arguments_of_base_classes_are_shown_and_taken() -> None:
    assert {"batch_size", "split", "shuffle"} <= set(inspect.signature(CIFAR10DataModule).parameters)
    # What a base class takes in its place, a class that hands it on takes by name alone.
    partitioner = inspect.signature(FedProxSyntheticDataModule).parameters["partitioner"]
    assert partitioner.kind is inspect.Parameter.KEYWORD_ONLY
    assert [*inspect.signature(DirichletPartitioner(5, 0.3)).parameters] == ["labels"]


@pytest.mark.parametrize(
    ("rule", "named"), [("adam", FedAdam), ("yogi", FedYogi), ("adagrad", fl_lightning.FedAdagrad)]
)
def test_the_server_optimizer_has_the_defaults_of_the_named_algorithm(rule: str, named: type) -> None:
    adaptive = Adaptive(rule)  # type: ignore[arg-type]
    shown = inspect.signature(named).parameters
    for name in ("beta1", "tau", "v0", "bias_correction"):
        assert getattr(adaptive, name) == shown[name].default
    assert adaptive.lr == shown["server_lr"].default


class SlowClock(VirtualClock):
    pass


def test_config_files_know_the_types_of_arguments_and_take_a_clock_of_a_user() -> None:
    for cls in (Asynchronous, Krum, Clip, DirichletPartitioner):
        parser = ArgumentParser()
        parser.add_class_arguments(cls, "part")
        assert "Unvalidated" not in parser.format_help()
    parser = ArgumentParser()
    parser.add_subclass_arguments(AggregationCallback, "method")
    clock = {"class_path": f"{__name__}.SlowClock", "init_args": {"speeds": [1, 2]}}
    found = parser.parse_object({"method": {"class_path": "fl_lightning.FedBuff", "init_args": {"clock": clock}}})
    assert isinstance(parser.instantiate(found).method.clock, SlowClock)


def test_texts_show_what_differs_from_defaults() -> None:
    assert repr(FedAvg(0.5, exchange=[Clip(1.0), TopK(np.float32(0.5))], server_lr=1)) == (
        "FedAvg(clients_per_round=0.5, exchange=[Clip(norm=1.0), TopK(fraction=0.5, error_feedback=True, link='up', "
        "of='update')])"
    )
