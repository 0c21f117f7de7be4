"""Other processes make no batches that depend on a state of the data's own, and all others."""

from __future__ import annotations

import os
import random
import threading
import warnings
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.read_samples import Points, fit, linear, sets_of
from helpers.toys import quiet_trainer
from torch import Tensor
from torch.utils.data import default_collate

from fl_lightning import ClientDatasetsModule, FedAvg

EXECUTORS = ["sequential", "vectorized", "auto"]
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


class RarelyNoisy(Points):
    """Draws for each sample, and changes one in ten."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.held = {"generators": [np.random.default_rng(seed)]}

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return (-x if self.held["generators"][0].random() < 0.1 else x), y


class Counts(Points):
    reads = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        Counts.reads += 1
        x, y = super().__getitem__(index)
        return x * (1 + 0.01 * Counts.reads), y


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


class All:
    """Transforms one after the other."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class Annotated(Points):
    """Holds more objects than anybody looks at."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.notes = [{"boxes": [[i, 1], [2, 3]], "meta": {"ids": [i, i]}} for i in range(3_000)]


STATEFUL: dict[str, tuple[Any, Any, str]] = {
    "generator": (OwnGenerator, dict, "`OwnGenerator` keeps a state"),
    "rare": (RarelyNoisy, dict, "`RarelyNoisy` keeps a state"),
    "counter": (Counts, dict, "`Counts` keeps a state"),
    "collate": (Points, partial(dict, collate_fn=noisy_batch), "`Points` or `collate_fn` keeps a state"),
    "deep": (Annotated, lambda: {"train_transform": All(All(Drops(0.02)))}, "`Annotated` or `train_transform` keeps"),
    "transform": (Points, lambda: {"train_transform": Drops()}, "`Points` or `train_transform` keeps a state"),
}


@pytest.mark.parametrize("case", STATEFUL)
def test_batches_that_depend_on_a_state_are_made_in_the_training_process(case: str) -> None:
    kind, options, words = STATEFUL[case]

    def run(num_workers: int, executor: str = "sequential") -> Tensor:
        Counts.reads = 0
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
    assert torch.equal(run(1, "auto"), expected)


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


def test_each_fit_warns_once() -> None:
    data = ClientDatasetsModule(sets_of(OwnGenerator), batch_size=4, num_workers=1)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0)]).fit(linear(), datamodule=data)
        assert len(warned(caught)) == 1


def test_a_transform_that_is_put_in_later_is_tried_out() -> None:
    class Changes(L.Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            data.train_transform = Drops() if trainer.current_epoch == 1 else None

    assert torch.equal(*(fit(sets_of(), Changes(), rounds=3, num_workers=n) for n in (0, 2)))


# ---- what is harmless ----


class Pids(Points):
    """Says which process has read the sample."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return os.getpid(), index % 3


class Caches(Pids):
    """Reads a file that it opens when it is asked first, keeps what it read, and counts."""

    path = Path(__file__)

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.kept: dict[int, Any] = {}
        self.file: Any = None
        self.lock = threading.Lock()
        self.reads = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        with self.lock:
            if self.file is None:
                self.file = self.path.open("rb")
            if index not in self.kept:
                self.file.seek(index)
                self.kept[index] = super().__getitem__(index)[0], self.file.read(1)[0]
        return self.kept[index]


class Augments(Pids):
    """Draws from the global generators."""

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return super().__getitem__(index)[0], torch.rand(()) + random.random() + np.random.rand() + float("nan")


class Linked:
    """A batch whose part refers to the whole."""

    def __init__(self, values: list[Any]) -> None:
        self.values, self.part = values, Part(self)

    def __getitem__(self, place: int) -> Any:
        return self.values[place]

    def __reduce__(self) -> Any:
        return Linked, (self.values,)


class Part:
    def __init__(self, whole: Linked) -> None:
        self.whole = weakref.ref(whole)


def linked(samples: list[Any]) -> Linked:
    return Linked(default_collate(samples))


def of_four(samples: list[Any]) -> Any:
    assert len(samples) == 4
    return default_collate(samples)


@pytest.mark.parametrize(
    ("kind", "collate"), [(Caches, None), (Augments, None), (Pids, of_four), (Pids, linked), (Augments, list)]
)
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
