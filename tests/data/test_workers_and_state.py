"""Other processes make no batches that depend on a state of the data's own, and all others."""

from __future__ import annotations

import os
import random
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.read_samples import Points, fit, sets_of
from torch import Tensor
from torch.utils.data import default_collate

from fl_lightning import ClientDatasetsModule

EXECUTORS = ["sequential", "vectorized"]
IN_TRAINING = "are made in the training process, as with `num_workers=0`"
pytestmark = pytest.mark.auto_decides


def warned(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in caught if IN_TRAINING in str(warning.message)]


# ---- state that the data keep ----


class OwnGenerator(Points):
    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.generator = torch.Generator().manual_seed(seed)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.randn(4, generator=self.generator, dtype=torch.float64), y


COLLATES = torch.Generator()


def noisy_batch(samples: list[Any]) -> Any:
    x, y = default_collate(samples)
    return x + torch.randn(1, generator=COLLATES, dtype=torch.float64), y


class Drops:
    """A transform with a generator of its own."""

    def __init__(self, share: float = 0.2) -> None:
        self.generator, self.share = random.Random(0), share

    def __call__(self, x: Tensor) -> Tensor:
        return x * (self.generator.random() > self.share)


STATEFUL: dict[str, tuple[Any, Any, str]] = {
    "generator": (OwnGenerator, dict, "`OwnGenerator` keeps a state"),
    "collate": (Points, partial(dict, collate_fn=noisy_batch), "`Points` or `collate_fn` keeps a state"),
    "transform": (Points, lambda: {"train_transform": Drops()}, "`Points` or `train_transform` keeps a state"),
}


@pytest.mark.parametrize("case", STATEFUL)
def test_batches_that_depend_on_a_state_are_made_in_the_training_process(case: str) -> None:
    kind, options, words = STATEFUL[case]

    def run(num_workers: int, executor: str = "sequential") -> Tensor:
        COLLATES.manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = fit(sets_of(kind), executor=executor, num_workers=num_workers, **options())
        messages = warned(caught)
        assert len(messages) == (num_workers > 0)
        assert all(words in message and f"not {num_workers}." in message for message in messages)
        return found

    expected = run(0)
    for executor in EXECUTORS:
        assert torch.equal(run(2, executor), expected)


def test_only_the_client_whose_batches_depend_on_a_state_is_left_out() -> None:
    sets = [Pids(6, 0), OwnGenerator(6, 1)]
    data = ClientDatasetsModule(sets, num_workers=1)
    data.setup("fit")
    generator = torch.Generator()
    with pytest.warns(UserWarning, match="A batch of client 1 depends on more than its samples"):
        batches = [next(data.client_batches(client, generator=generator)) for client in (0, 1)]
    alone = ClientDatasetsModule([Points(6, 0), OwnGenerator(6, 1)])
    alone.setup("fit")
    generator = torch.Generator()
    expected = [next(alone.client_batches(client, generator=generator)) for client in (0, 1)]
    data.teardown("fit")
    assert os.getpid() not in batches[0][0].tolist()
    assert torch.equal(batches[1][0], expected[1][0])


# ---- what is harmless ----


class Pids(Points):
    """Says which process has read the sample."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return os.getpid(), index % 3


class Augments(Pids):
    """Draws from the global generators."""

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return super().__getitem__(index)[0], torch.rand(()) + random.random() + np.random.rand() + float("nan")


def of_four(samples: list[Any]) -> Any:
    assert len(samples) == 4
    return default_collate(samples)


@pytest.mark.parametrize(("kind", "collate"), [(Pids, of_four), (Augments, list)])
def test_other_processes_make_the_batches_of_harmless_data(kind: Any, collate: Any) -> None:
    data = ClientDatasetsModule([kind(8, 0)], batch_size=4, num_workers=2, collate_fn=collate)
    data.setup("fit")
    generator = torch.Generator()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = [batch for _ in range(2) for batch in data.client_batches(0, generator=generator)]
    data.teardown("fit")
    assert (len(batches), warned(caught)) == (4, [])
    pids = [pid for batch in batches for pid in ([x for x, _ in batch] if collate is list else batch[0].tolist())]
    assert os.getpid() not in pids
