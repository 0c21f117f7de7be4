"""The examples of docstrings run, and named algorithms, samplers, data, partitioners and models have one.

In an example ``module`` and ``data`` are a small classifier and six clients; ``L`` is lightning. All public
names of the package are there. What an example prints is compared with what it shows, if it shows anything.
"""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fl_lightning
from fl_lightning import AggregationCallback, ClientDatasetsModule, WithinClientSplit
from fl_lightning.parts import ClientSampler

ROOMS = ["fl_lightning", *(f"fl_lightning.{room.name}" for room in iter_modules(fl_lightning.__path__) if room.ispkg)]


def public_names() -> dict[str, Any]:
    """Return all that rooms name in ``__all__``."""
    found: dict[str, Any] = {}
    for room in map(import_module, ROOMS):
        found.update({name: getattr(room, name) for name in getattr(room, "__all__", ())})
    return found


NAMES = public_names()


def example_of(thing: Any) -> list[doctest.Example]:
    """Return the statements of the example in a thing's own docstring; none if it has no example."""
    _, _, section = (inspect.getdoc(thing) or "").partition("\nExample:\n")
    return doctest.DocTestParser().get_examples(section)


EXAMPLES = {name: example for name, thing in NAMES.items() if callable(thing) and (example := example_of(thing))}


class WhatIsShown(doctest.OutputChecker):
    """Compares what a statement prints where the example shows it."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


class Net(L.LightningModule):
    """A body, with a normalisation layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.ReLU())
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x))
        return scores

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_acc", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_acc", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def six_clients() -> ClientDatasetsModule:
    x = torch.randn(6, 12, 4)
    clients = [TensorDataset(each, torch.arange(12) % 3) for each in x]
    return ClientDatasetsModule(clients, split=WithinClientSplit(val=0.2, test=0.2), batch_size=4)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {**NAMES, "L": L, "module": Net(), "data": six_clients()}
    failures: list[str] = []
    test = doctest.DocTest(EXAMPLES[name], names, name, None, None, None)
    doctest.DocTestRunner(checker=WhatIsShown(), verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("kind", [AggregationCallback, ClientSampler])
def test_each_named_class_of_a_kind_has_an_example(kind: type) -> None:
    classes = {name: thing for name, thing in NAMES.items() if inspect.isclass(thing)}
    names = [name for name, thing in classes.items() if issubclass(thing, kind) and thing is not kind]
    assert names
    code = {name: "".join(each.source for each in example) for name, example in EXAMPLES.items()}
    assert [name for name in names if f"{name}(" not in code.get(name, "")] == []


@pytest.mark.parametrize("room", ["data", "datamodules", "models", "partitioners"])
def test_each_class_of_a_room_has_an_example(room: str) -> None:
    exported = import_module(f"fl_lightning.{room}").__all__
    assert [name for name in exported if inspect.isclass(NAMES[name]) and name not in EXAMPLES] == []
