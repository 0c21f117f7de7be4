"""A step's draws, of torch, numpy and Python, are each client's own in a stack, in the order of the step."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from zoo.fitting import ends_alike
from zoo.modules.base import Classifier, Losing

from fl_lightning.executors.stack.randomness import ClientGenerators

compare = partial(ends_alike, sizes=(8, 13, 6), federated={"local_epochs": 2})


def mixes_up(m: Any, x: Tensor, y: Tensor) -> Tensor:
    share = np.random.beta(0.4, 0.4)
    order = torch.from_numpy(np.random.permutation(len(x)))
    scores = m(share * x + (1 - share) * x[order])
    return share * F.cross_entropy(scores, y) + (1 - share) * F.cross_entropy(scores, y[order])


def draws_by_all(m: Any, x: Tensor, y: Tensor) -> Tensor:
    noise = torch.as_tensor(np.random.normal(size=x.shape), dtype=x.dtype)
    # Tensors that are no client's are filled with each client's own numbers.
    noise += torch.zeros(6).normal_() + torch.bernoulli(input=torch.ones(6) / 2) + torch.normal(mean=torch.zeros(6))
    factor = random.uniform(0.5, 1.5) + np.random.randint(1, 3)
    m.log("factor", factor)
    # A tensor has the type of the number that is drawn.
    factor = factor + torch.tensor([random.random(), 2.0])[0]
    return factor * F.cross_entropy(m(x + F.dropout(x, 0.2) + 0.1 * noise), y)


class DrawsInAHook(Classifier):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad.mul_(np.random.uniform(0.5, 1.5))  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [lambda: Losing(mixes_up), lambda: Losing(draws_by_all), DrawsInAHook])
def test_draws_are_those_of_each_client_alone(make: Callable[[], Classifier]) -> None:
    assert compare(make, trainer={"precision": "64-true"}) is None


def decides_by_a_draw(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(x), y) * (2 if random.random() < 0.5 else 1)


def draws_by_values(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(x), y) * np.random.uniform(0, x.std().item())


@pytest.mark.parametrize(
    ("loss", "cause"), [(decides_by_a_draw, "Python decides"), (draws_by_values, "arguments that it computes")]
)
def test_other_draws_train_one_after_the_other(loss: Any, cause: str) -> None:
    assert cause in str(compare(lambda: Losing(loss)))


# ---- what the rows of a stack draw ----

#: Samples of two clients' batches, of which the second one is filled up to the size of the first.
SIZES = (4, 2)
X = torch.arange(24.0).sin().double().view(2, 4, 3)
#: Draws for all that a tensor of shape (clients, samples, 3) holds.
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "new": lambda x: torch.rand(x.shape, dtype=torch.float64),
    "new without samples": lambda x: torch.rand(len(x), 3),
    "alike": torch.randn_like,
    "of two": lambda x: torch.normal(x, x.abs()),
    "in place": lambda x: x.clone().normal_(0, 0.3),
    "in place without samples": lambda x: x[:, 0].clone().normal_(0, 0.3),
    "two results": lambda x: sum(torch.native_dropout(x, 0.5, True)),  # type: ignore[return-value]
    "samples first": lambda x: x.abs().flatten(0, 1).bernoulli(),
}


def generators() -> ClientGenerators:
    return ClientGenerators(1, [(0, 5), (0, 3)], torch.device("cpu"))


@pytest.mark.parametrize("name", DRAWS)
def test_rows_draw_as_clients_alone(name: str) -> None:
    draw = DRAWS[name]
    with generators().drawing([0, 1], SIZES, 4):
        found = draw(X).view(2, -1, 3)
    for row, size in enumerate(SIZES):
        with generators().active(row):
            own = draw(X[row : row + 1, :size]).view(-1, 3)
        assert found[row].tolist() == [*own.tolist(), *[own[0].tolist()] * (found.shape[1] - len(own))]
