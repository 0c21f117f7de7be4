"""Batches that are compared bit for bit, and generators that are found."""

from __future__ import annotations

import random
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data.own_generators import OwnGenerators
from fl_lightning.data.same_batches import same_bits

Pair = namedtuple("Pair", "x y")


@dataclass
class Batch:
    x: torch.Tensor
    y: Any = None


class Slotted:
    __slots__ = ("__x", "y")

    def __init__(self, x: Any) -> None:
        self.__x = x

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def itself(value: Any) -> SimpleNamespace:
    held = SimpleNamespace(value=value)
    held.own = held
    return held


MAKERS: list[Any] = [
    lambda v: torch.tensor([1.0, v, float("nan")]),
    lambda v: torch.tensor([1.0, v]).to_sparse(),
    lambda v: torch.tensor([[1.0, v]]).to_sparse_csr(),
    lambda v: torch.quantize_per_tensor(torch.tensor([1.0, v]), 0.1, 0, torch.qint8),
    lambda v: torch.tensor([1 + 1j * v]).conj(),
    lambda v: torch.tensor(v, dtype=torch.bfloat16),
    lambda v: torch.nested.nested_tensor([torch.ones(2), torch.tensor([v])], layout=torch.strided),
    lambda v: np.array([v, np.nan]),
    lambda v: np.array([v, "text", float("nan")], dtype=object),
    lambda v: np.float32(v),
    lambda v: float("nan") if v == 1 else v,
    lambda v: {"a": [v, (None, True)], "b": {1, 2}},
    lambda v: Pair(v, "text"),
    lambda v: Batch(torch.tensor([v, float("nan")])),
    lambda v: UserDict(x=torch.tensor([v, v])),
    lambda v: Slotted(torch.tensor([v, v])),
    lambda v: itself(torch.tensor([v])),
    lambda v: Image.new("L", (2, 2), int(v)),
]


@pytest.mark.parametrize("make", MAKERS)
def test_equal_and_other_values(make: Any) -> None:
    assert same_bits(make(1.0), make(1.0))
    assert not same_bits(make(1.0), make(2.0))


def test_values_of_other_types_shapes_and_lengths_differ() -> None:
    pairs = [(1, 1.0), (torch.ones(2), torch.ones(2, dtype=torch.float64)), (torch.ones(2), torch.ones(2, 1))]
    pairs += [([1], [1, 2]), ({"a": 1}, {"b": 1}), (np.ones(2), np.ones((2, 1))), (torch.zeros(1), -torch.zeros(1))]
    assert not any(same_bits(one, other) for one, other in pairs)
    assert not same_bits(lambda: 1, lambda: 1)  # nothing tells what they are


GLOBAL = np.random.RandomState(0)
BOX = SimpleNamespace(generator=random.Random(0))


def by_global() -> Any:
    return (lambda: [GLOBAL.rand() for _ in range(2)]), GLOBAL.rand


def by_closure() -> Any:
    generator = torch.Generator()
    return (lambda: torch.rand((), generator=generator)), lambda: torch.rand((), generator=generator)


def by_attribute_of_a_class() -> Any:
    class Owner:
        generator = np.random.default_rng(0)

        def draw(self) -> float:
            return float(self.generator.random())

    return Owner(), Owner().draw


def by_bits() -> Any:
    bits = np.random.PCG64(0)
    return [{"bits": bits}], bits.random_raw


def by_method() -> Any:
    return random.Random(1).gauss, None


def by_object() -> Any:
    return (lambda: BOX), BOX.generator.random


@pytest.mark.parametrize("make", [by_global, by_closure, by_attribute_of_a_class, by_bits, by_method, by_object])
def test_generators_that_data_hold_are_found(make: Any) -> None:
    root, draw = make()
    found = OwnGenerators(root)
    assert not found.have_drawn()
    root(0, 1) if draw is None else draw()
    assert found.have_drawn()


def test_global_generators_are_nobodys_own() -> None:
    roots = [random.random, np.random.rand, torch.default_generator, random.SystemRandom()]
    found = OwnGenerators(*roots)
    random.random(), np.random.rand(), torch.rand(()), roots[-1].random()
    assert not found.have_drawn()
