"""What a training step prints, logs and writes comes once for each client's batch, under every executor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, TensorDataModule

SIZES = (8, 13, 6)  # 2, 4 and 2 batches of 4


class Speaks(Module):
    """Does something beside computing in each step."""

    def __init__(self, speak: Any) -> None:
        super().__init__(nn.Linear(6, 3))
        self.__dict__["speak"] = speak

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.speak(f"{batch_idx}: {len(batch[0])} samples")
        return loss


def prints(text: str) -> None:
    print(text)


def logs(text: str) -> None:
    logging.getLogger("mine").warning(text)


def fit(module: Module, executor: str) -> Tensor:
    torch.manual_seed(0)
    torch.nn.init.normal_(module.layers.weight)
    data = TensorDataModule(clients_of((6,), SIZES), batch_size=4, shuffle=False)
    callback = FedAvg(1.0, seed=0, executor=executor)
    quiet_trainer(max_epochs=2, callbacks=[callback]).fit(module, datamodule=data)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


OPENED = [lambda path: open(path, "a"), lambda path: path.open("a")]  # noqa: SIM115
BLOCKS = sorted(2 * [[4, 2], [4, 4, 4, 1], [4, 4]])  # sizes of batches, for each client in each of two rounds


def blocks(lines: list[str]) -> list[list[int]]:
    """Return the sizes of each client's batches, whose numbers have to come in order."""
    clients: list[list[int]] = []
    for index, size in (line.removesuffix(" samples").split(": ") for line in lines):
        clients += [[]] if index == "0" else []
        assert int(index) == len(clients[-1])
        clients[-1].append(int(size))
    return sorted(clients)


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_prints(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    fit(Speaks(prints), executor)
    lines = capsys.readouterr().out.splitlines()
    assert blocks([line for line in lines if line.endswith("samples")]) == BLOCKS


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_messages(executor: str, caplog: pytest.LogCaptureFixture) -> None:
    fit(Speaks(logs), executor)
    assert blocks([record.message for record in caplog.records if record.name == "mine"]) == BLOCKS


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
@pytest.mark.parametrize("opened", OPENED)
def test_lines_of_a_file(executor: str, opened: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"

    def writes(text: str) -> None:
        with opened(path) as file:
            file.write(text + "\n")

    fit(Speaks(writes), executor)
    assert blocks(path.read_text().splitlines()) == BLOCKS


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_a_file_that_stays_open(executor: str, tmp_path: Path) -> None:
    with (tmp_path / "lines.txt").open("w") as file:
        fit(Speaks(lambda text: file.write(text + "\n")), executor)
    assert blocks((tmp_path / "lines.txt").read_text().splitlines()) == BLOCKS


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_saved_files(executor: str, tmp_path: Path) -> None:
    saved: list[str] = []

    def saves(text: str) -> None:
        torch.save(text, tmp_path / f"{text[0]}.pt")
        saved.append(text)

    fit(Speaks(saves), executor)
    assert {path.name for path in tmp_path.iterdir()} == {"0.pt", "1.pt", "2.pt", "3.pt"}
    assert blocks(saved) == BLOCKS


def test_the_cause_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fit(Speaks(prints), "vectorized")
    assert "not stacked: `training_step` prints" in caplog.text
