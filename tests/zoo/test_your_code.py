"""The examples of docs/your-code.md: one of each pair is stacked, and both train to the same weights."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule
from zoo.entry import Entry, vectors
from zoo.fitting import Fit, fit
from zoo.modules.base import Classifier
from zoo.outcome import differences

PAGE = Path(__file__).parents[2] / "docs" / "your-code.md"
BEGINNING, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
TITLES = re.findall(r"### (.*)\n\n(?:(?!###)[^`]|`(?!``))*```python", PAGE.read_text(encoding="utf-8"))


def fitted(block: str, name: str, executor: str) -> Fit:
    """Train the module of an example."""
    defined: dict[str, Any] = {}
    exec(BEGINNING + block, defined)
    return fit(Entry(name, defined[name], dtype=torch.float64), executor)


def test_every_example_has_a_title() -> None:
    assert len(TITLES) == len(BLOCKS) >= 1


@pytest.mark.parametrize("block", BLOCKS, ids=TITLES)
def test_examples(block: str) -> None:
    alone, stacked = fitted(block, "OneAfterTheOther", "vectorized"), fitted(block, "Stacked", "vectorized")
    assert alone.cause is not None
    assert stacked.cause is None
    assert not differences(alone.outcome.weights, stacked.outcome.weights, 1e-6)
    assert not differences(fitted(block, "Stacked", "sequential").outcome.weights, stacked.outcome.weights, 1e-6)


class Counters(Classifier):
    """Notes what counters are."""

    def prepare(self) -> None:
        self.indices: list[int] = []
        self.last: list[bool] = []

    def configure_optimizers(self) -> Any:
        self.at_first = self.trainer.num_training_batches, self.trainer.estimated_stepping_batches
        return super().configure_optimizers()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        assert self.trainer.train_dataloader is None
        assert self.trainer.num_training_batches == 14
        self.indices.append(batch_idx)
        self.last.append(self.trainer.is_last_batch)
        return super().loss(batch, batch_idx)


class RoundIndices(Callback):
    """Notes the index that callbacks see."""

    def __init__(self) -> None:
        self.indices: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.indices.append(batch_idx)


def test_counters() -> None:
    # clients of 3, 8 and 13 samples in batches of 4: 1, 2 and 4 batches an epoch, two epochs in each of two rounds
    data = TensorDataModule(vectors([3, 8, 13], torch.float32).clients, batch_size=4)
    module, seen = Counters(), RoundIndices()
    callbacks = [FedAvg(1.0, seed=0, local_epochs=2, executor="sequential"), seen]
    trainer = quiet_trainer(max_epochs=2, callbacks=callbacks)
    trainer.fit(module, datamodule=data)
    assert module.at_first == (float("inf"), 2 * 5)  # 14 batches are 14/3 = 4.67 for each client, rounded up
    for indices in (module.indices[:14], module.indices[14:]):
        starts = [place for place, index in enumerate(indices) if index == 0] + [14]
        lengths = [end - start for start, end in pairwise(starts)]
        assert sorted(lengths) == [2, 4, 8]
        assert indices == [index for length in lengths for index in range(length)]
    assert seen.indices == [*range(14), *range(14)]
    assert module.last == 2 * [*(13 * [False]), True]
    assert [data.num_client_batches(client) for client in range(3)] == [1, 2, 4]
    assert len(data.train_dataloader()) == 6  # 24 samples together
