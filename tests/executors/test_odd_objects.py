"""Whatever a training step can see, however it behaves when it is looked at, does not end a fit."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule


class Lazy(Mapping[str, Any]):
    """Loads what it holds when it is asked, which may fail."""

    loads = 0

    def __getitem__(self, key: str) -> Any:
        type(self).loads += 1
        raise ValueError("cannot be loaded")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class LazyDict(dict[str, Any]):
    """The same, of a dictionary."""

    def items(self) -> Any:
        raise ValueError("cannot be loaded")


class OfRequest:
    """Stands for something that is there during a request only."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


class Unlike:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    def __bool__(self) -> bool:
        raise RuntimeError("has no truth value")

    __hash__ = None  # type: ignore[assignment]


class ShortList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("cannot be iterated")

    def __len__(self) -> int:
        raise RuntimeError("has no length")


def proxy_of_nothing() -> Any:
    return weakref.proxy(Unlike())


GIVEN: Any = None


class ReadsGlobal(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss if GIVEN is not Ellipsis else 0 * loss


@pytest.mark.parametrize(
    "make",
    [Lazy, lambda: LazyDict(a=1), OfRequest, Unlike, lambda: ShortList([1]), proxy_of_nothing, MagicMock],
    ids=["mapping", "dictionary", "request", "equality", "list", "proxy", "mock"],
)
def test_objects_that_cannot_be_looked_at(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "GIVEN", make())
    weights = {}
    for executor in ("sequential", "vectorized"):
        module = ReadsGlobal(linear())
        fitter = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor=executor, seed=0)])
        fitter.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
        weights[executor] = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.allclose(weights["sequential"], weights["vectorized"], rtol=1e-9)
    assert fitter.fit_loop.executor.cause is None
    assert Lazy.loads == 0


@pytest.mark.parametrize("given", [LazyDict(weight=1.0), MappingProxyType({"weight": 1.0})], ids=["class", "proxy"])
def test_contents_of_dictionaries_are_seen_all_the_same(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"weight": 1.0}
    monkeypatch.setitem(globals(), "GIVEN", given if isinstance(given, dict) else MappingProxyType(held))

    class Changes(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            (GIVEN if isinstance(GIVEN, dict) else held)["weight"] += 1
            return loss

    fitter = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, executor="vectorized", seed=0)])
    fitter.fit(Changes(linear()), datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    assert "`GIVEN`" in fitter.fit_loop.executor.cause or "`held`" in fitter.fit_loop.executor.cause
