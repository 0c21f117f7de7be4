"""Batches in containers of all kinds are stacked and taken apart."""

from __future__ import annotations

import re
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.stack.batches import stack_batches


@dataclass(frozen=True)
class Sample:
    x: Tensor
    kind: str = "a"


Pair = namedtuple("Pair", "x y")


def batch_of(value: float) -> Any:
    x = torch.full((4, 2), value)
    return {"pair": Pair(x, [2 * x.T, "text"]), "sample": Sample(3 * x), "none": None, "number": 7}


def test_batches_in_containers_are_stacked_and_taken_apart() -> None:
    stacked = stack_batches([batch_of(1.0), batch_of(2.0), batch_of(3.0)])
    # The transposed tensor keeps its strides.
    assert [tuple(own.shape) for own in stacked.tensors] == [(3, 4, 2), (3, 2, 4), (3, 4, 2)]
    assert (stacked.tensors[1].stride(), stacked.size()) == ((8, 1, 2), 4)
    again = stacked.rebuild([own[1] for own in stacked.tensors])
    assert str(again) == str(batch_of(2.0))
    assert [own[:, 0, 0].tolist() for own in stacked.of([0, 2]).tensors] == [[1, 3], [2, 6], [3, 9]]
    assert stack_batches([[torch.zeros(3)], [torch.ones(3)]]).size() == 3
    assert stacked.of([1, 2]).form() == stacked.form() != stack_batches([{**batch_of(1.0), "number": 8}]).form()


class Named(dict[str, Any]):
    def __init__(self, *held: Any) -> None:
        super().__init__(*held)
        self.order = object()


@pytest.mark.parametrize(
    ("part", "cause"),
    [(Named(), "Named with attributes (order)"), (torch.zeros(2).requires_grad_(), "require gradients")],
)
def test_batches_with_something_of_their_own_are_not_stacked(part: Any, cause: str) -> None:
    for batch in ([part], {"y": 1, "x": (1, part)}, Sample(part)):
        with pytest.raises(CannotVectorize, match=re.escape(cause)):
            stack_batches([batch, batch])
