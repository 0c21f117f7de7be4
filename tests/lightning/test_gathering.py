"""Gathered objects arrive whole, and their tensors on the receiver's own device; ``meta`` stands for another GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fl_lightning._lightning.processes import gather_objects
from fl_lightning.parts import ClientResult, Task


@pytest.fixture
def sent_from_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors of three values say that they lie on ``cuda:1``."""
    tagged = torch.serialization.location_tag
    monkeypatch.setattr(
        torch.serialization, "location_tag", lambda storage: "cuda:1" if storage.nbytes() == 12 else tagged(storage)
    )
    # what the other process sends is the same here
    monkeypatch.setattr(
        torch.distributed, "all_gather_object", lambda everyone, mine: everyone.__setitem__(slice(None), [mine, mine])
    )


def test_tensors_of_another_gpu_arrive_on_ones_own(sent_from_another_gpu: None) -> None:
    trainer: Any = SimpleNamespace(world_size=2, strategy=SimpleNamespace(root_device=torch.device("meta")))
    result = ClientResult(Task(0, 1, 2), received=torch.ones(2), vector=torch.zeros(3), num_steps=4)
    for share in gather_objects(trainer, {"result": result, "list": [torch.zeros(3), 5]}):
        assert share["result"].vector.device.type == share["list"][0].device.type == "meta"
        assert share["result"].received.tolist() == [1.0, 1.0]
        assert (share["result"].task, share["result"].num_steps, share["list"][1]) == (Task(0, 1, 2), 4, 5)
    alone: Any = SimpleNamespace(world_size=1)
    assert gather_objects(alone, result)[0] is result  # one process gets its own object
