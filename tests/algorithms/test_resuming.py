"""Every algorithm: a fit in two parts is a fit in one, bit for bit. (Killed fits: ``test_all_algorithms.py``.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import quiet_trainer


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_fit_in_two_parts_is_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(rounds: int, folder: str, resume: bool = False) -> dict[str, Any]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)  # of clients' vectors
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[ALGORITHMS[name](seed=1, executor="sequential")])
        trainer.fit(Net(), datamodule=data(), ckpt_path="end.ckpt" if resume else None)
        trainer.save_checkpoint("end.ckpt")
        content: dict[str, Any] = torch.load("end.ckpt", weights_only=True)
        return content

    whole = fit(5, "whole")
    fit(2, "parts")
    resumed = fit(5, "parts", resume=True)
    for part in ("state_dict", "callbacks", "global_step", "lr_schedulers"):
        assert dict(leaves(resumed[part], part)) == dict(leaves(whole[part], part))


def leaves(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the places and the values of all that a checkpoint holds; of a tensor its bytes."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{place}/{key}")
    elif isinstance(content, (list, tuple)):
        for number, value in enumerate(content):
            yield from leaves(value, f"{place}/{number}")
    elif isinstance(content, torch.Tensor):
        yield place, (content.dtype, content.numpy().tobytes())
    else:
        yield place, content
