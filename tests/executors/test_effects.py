"""What a training step prints, logs and writes comes once for each client's batch, under every executor."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext, suppress
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


def by_system_calls(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def by_folders(path: Path, text: str) -> None:
    path.mkdir(exist_ok=True)
    (path / f"{len(list(path.iterdir())):03} {text}").mkdir()


def by_a_database(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table if not exists lines (line text)")
        connection.execute("insert into lines values (?)", (text,))


def by_a_process(path: Path, text: str) -> None:
    subprocess.run(["sh", "-c", f"echo '{text}' >> {path}"], check=True)


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("by", [by_system_calls, by_folders, by_a_database, by_a_process])
def test_what_goes_to_the_system(executor: str, caught: bool, by: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def speaks(text: str) -> None:
        with suppress(Exception) if caught else nullcontext():
            by(path, text)

    fit(Speaks(speaks), executor)
    if by is by_a_database:
        with closing(sqlite3.connect(path)) as connection:
            lines = [line for (line,) in connection.execute("select line from lines order by rowid")]
    elif by is by_folders:
        lines = [each.name[4:] for each in sorted(path.iterdir())]
    else:
        lines = path.read_text().splitlines()
    assert blocks(lines) == BLOCKS


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_datagrams(executor: str) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(10)
        fit(Speaks(lambda text: sender.sendto(text.encode(), receiver.getsockname())), executor)
        lines = [receiver.recv(99).decode() for _ in range(sum(map(len, BLOCKS)))]
    assert blocks(lines) == BLOCKS


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


AT_THE_END = """
import builtins, json, logging, os, sys
from fl_lightning.executors.stacked.guards import effects

with effects.no_effects():
    pass


class EndsLate:
    def __del__(self, ask=id):  # of which there is an audit event
        ask(self)


for module in (sys, builtins, os, json, logging):
    module.ends_late = EndsLate()
"""


def test_nothing_is_said_of_the_watch_when_python_ends() -> None:
    """Objects that end late make audit events when the names of the watch's module are gone."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "audit hook" not in done.stderr
