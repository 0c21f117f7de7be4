"""Errors of a client are raised with stacks as without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import assert_below
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import functional as F
from zoo.entry import Data, Entry, vectors
from zoo.fitting import fit
from zoo.modules.base import Classifier, Losing


class Inner(Losing):
    """Has another module in it."""

    def prepare(self) -> None:
        self.inner = Classifier()


def adds(term: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    return lambda m, x, y: F.cross_entropy(m(x), y.clamp(0, 2)) + term(y)


def with_variance(y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(y.double(), torch.zeros(len(y)).double(), y.double() + 1)


def asserts(m: Any, x: Tensor, y: Tensor) -> Tensor:
    assert y.max() < 3, "a rare client"
    return F.cross_entropy(m(x), y.clamp(0, 2))


def asserts_elsewhere(m: Any, x: Tensor, y: Tensor) -> Tensor:
    assert_below(y, 3)
    return F.cross_entropy(m(x), y.clamp(0, 2))


def raises(m: Any, x: Tensor, y: Tensor) -> Tensor:
    if (y > 2).any():
        raise ValueError("a rare client")
    return F.cross_entropy(m(x), y.clamp(0, 2))


def logs_in_two_ways(m: Any, x: Tensor, y: Tensor) -> Tensor:
    m.log("loss", loss := F.cross_entropy(m(x), y.clamp(0, 2)), on_epoch=len(y) == 4)
    return loss


def logs_by_another(m: Any, x: Tensor, y: Tensor) -> Tensor:
    m.inner.log("loss", loss := F.cross_entropy(m(x), y.clamp(0, 2)))
    return loss


def has_no_number(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(m(x).square().sum() * 0 * y.min()).sum()


#: For each error: how much is added to the classes of client 4, the loss, the error, and what it says.
ERRORS: dict[str, tuple[int, Any, Any, str]] = {
    "embedding": (3, adds(lambda y: F.embedding(y, torch.ones(3, 1).double()).sum()), IndexError, "index out of range"),
    "one_hot": (3, adds(lambda y: F.one_hot(y, 3).sum()), RuntimeError, "Class values must be"),
    "variance": (-5, adds(with_variance), ValueError, "var has negative entry"),
    "assertion": (3, asserts, AssertionError, "a rare client"),
    "assertion elsewhere": (3, asserts_elsewhere, AssertionError, "too large"),
    "raised": (3, raises, ValueError, "a rare client"),
    "logs in two ways": (0, logs_in_two_ways, MisconfigurationException, "different arguments"),
    "logs by another": (0, logs_by_another, MisconfigurationException, "not managed"),
    "anomaly": (0, has_no_number, RuntimeError, "nan values"),
}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_a_client_alone_are_raised(name: str, executor: str) -> None:
    odd, loss, error, message = ERRORS[name]

    def data(sizes: Any, dtype: Any) -> Data:
        made = vectors(sizes, dtype)
        made.clients[4][1].add_(odd)
        return made

    trainer = {"detect_anomaly": name == "anomaly"}
    with pytest.raises(error, match=message):
        fit(Entry("", lambda: Inner(loss), data, sizes=(10, 8, 8, 8, 8), trainer=trainer), executor)
