"""Batches in containers of all kinds are stacked and taken apart."""

from __future__ import annotations

import re
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.stack.batches import by_shape, stack_batches


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
    assert str([again, stacked.first]) == str([batch_of(2.0), batch_of(1.0)])
    assert [own[:, 0, 0].tolist() for own in stacked.of([0, 2]).tensors] == [[1, 3], [2, 6], [3, 9]]
    assert [stack_batches([batch]).size() for batch in ([torch.zeros(3)], ["a"])] == [3, 1]
    assert stacked.of([1, 2]).form() == stacked.form()


def with_own(part: Any) -> Any:
    object.__setattr__(part, "order", object())
    return part


def test_batches_of_other_forms_are_told_apart() -> None:
    usual, x = batch_of(1.0), torch.zeros(4, 2)
    changes: list[dict[str, Any]] = [
        *({"number": 8}, {"number": 7.0}, {"none": object()}, {"further": 1}),
        *({"sample": Sample(x, "b")}, {"sample": with_own(Sample(x))}),
        *({"pair": Pair(x, (2 * x.T, "text"))}, {"pair": (x, [2 * x.T, "text"])}, {"pair": Pair(x, [x, "text"])}),
    ]
    plain = [[x], (x,), [x.double()], [x.T.contiguous().T], [x[1:]], [x, x], [x, "text"]]
    groups = by_shape(enumerate([usual, *({**usual, **change} for change in changes), *plain, batch_of(2.0)]))
    assert [rows for rows, _ in groups] == [[0, 17], *([row] for row in range(1, 17))]
    assert str(groups[0][1]) == str([batch_of(1.0), batch_of(2.0)])
    assert len({stack_batches(members).form() for _, members in groups}) == 17


class Named(dict[str, Any]):
    pass


OF_THEIR_OWN = "tensors that are sparse, of a subclass or with attributes of their own"


@pytest.mark.parametrize(
    ("part", "other", "cause"),
    [
        (with_own(Named()), Named(), "Named with attributes (order)"),
        (torch.zeros(2).requires_grad_(), torch.zeros(2), "require gradients"),
        (with_own(torch.zeros(2)), torch.zeros(2), OF_THEIR_OWN),
        (torch.zeros(2).as_subclass(nn.Buffer), torch.zeros(2), OF_THEIR_OWN),
        (torch.zeros(2).to_sparse(), torch.zeros(2), OF_THEIR_OWN),
    ],
)
def test_batches_with_something_of_their_own_are_not_stacked(part: Any, other: Any, cause: str) -> None:
    for make in (lambda own: [own], lambda own: {"y": 1, "x": (1, own)}, Sample):
        with pytest.raises(CannotVectorize, match=re.escape(cause)):
            stack_batches([make(other), make(part)])
