"""A fit that has no round left keeps what it resumed from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import quiet_trainer


@pytest.mark.parametrize("name", ["RADFed", "FedDyn", "FedAsync"])
def test_a_checkpoint_after_it_goes_on_as_the_first(tmp_path: Path, name: str) -> None:
    first = quiet_trainer(max_epochs=2, callbacks=[ALGORITHMS[name](seed=1)])
    first.fit(Net(), datamodule=data())
    first.save_checkpoint(tmp_path / "first.ckpt")
    idle = quiet_trainer(max_epochs=2, callbacks=[ALGORITHMS[name](seed=1)])
    idle.fit(Net(), datamodule=data(), ckpt_path=tmp_path / "first.ckpt")
    idle.save_checkpoint(tmp_path / "second.ckpt")
    weights = []
    for path in ("first.ckpt", "second.ckpt"):
        module = Net()
        callback = ALGORITHMS[name](seed=1)
        quiet_trainer(max_epochs=5, callbacks=[callback]).fit(module, datamodule=data(), ckpt_path=tmp_path / path)
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)
