"""Steps that print, log, write and call others: each client's batch is told once, in order."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.entry import Entry, alike
from zoo.modules.base import Classifier
from zoo.outcome import CallRecorder

ROWS: list[Any] = []
LOGGER = CallRecorder()  # of no trainer
MESSAGES = logging.getLogger("zoo")


class Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        ROWS.append(record.getMessage())


@cache
def folder() -> Path:
    """Return the folder that steps write to."""
    return Path(tempfile.mkdtemp(prefix="zoo"))


class Tells(Classifier):
    """Tells somebody of each batch, ``tell(module, text, loss)``."""

    def __init__(self, tell: Callable[[Any, str, Tensor], Any]) -> None:
        super().__init__()
        self.tell = tell
        shutil.rmtree(folder(), ignore_errors=True)
        folder().mkdir()
        ROWS.clear()
        LOGGER.calls.clear()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        self.tell(self, f"{batch_idx}: {len(batch[1])} samples", loss)
        return loss


def outside() -> list[Any]:
    """Return everything that was told, as numbers and texts."""
    return [list(ROWS), list(LOGGER.calls), *map(content, sorted(folder().iterdir()))]


def content(path: Path) -> Any:
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("select line from lines order by rowid").fetchall()
    return path.name if path.suffix == ".pt" else path.read_text()


def prints(module: Any, text: str, loss: Tensor) -> None:
    print(text)


def prints_values(module: Any, text: str, loss: Tensor) -> None:
    with contextlib.suppress(Exception):
        print(text, f"{loss:.5f}", loss.tolist() > 1)


def to_stderr(module: Any, text: str, loss: Tensor) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        print(text, file=sys.stderr)
    ROWS.append(stream.getvalue())


def by(logger: logging.Logger) -> Callable[[Any, str, Tensor], None]:
    """Return what logs a message, and notes that it was heard."""

    def logs(module: Any, text: str, loss: Tensor) -> None:
        handler = Handler()
        logger.addHandler(handler)
        logger.warning(text)
        logger.removeHandler(handler)

    return logs


def appends(module: Any, text: str, loss: Tensor) -> None:
    with (folder() / "lines.txt").open("a") as file:
        file.write(text + "\n")


def writes_rows(module: Any, text: str, loss: Tensor) -> None:
    with (folder() / "rows.csv").open("a", newline="") as file:
        csv.writer(file).writerow([text])


def saves(module: Any, text: str, loss: Tensor) -> None:
    torch.save(text, folder() / f"{len(list(folder().iterdir()))} {text}.pt")


def calls_system(module: Any, text: str, loss: Tensor) -> None:
    file = os.open(folder() / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def catching(tell: Callable[[Any, str, Tensor], Any]) -> Callable[[Any, str, Tensor], None]:
    """Return what must not stop the training."""

    def caught(module: Any, text: str, loss: Tensor) -> None:
        with contextlib.suppress(Exception):
            tell(module, text, loss)

    return caught


def inserts(module: Any, text: str, loss: Tensor) -> None:
    with contextlib.closing(sqlite3.connect(folder() / "lines.db")) as connection, connection:
        connection.execute("create table if not exists lines (line text)")
        connection.execute("insert into lines values (?)", (text,))


def starts_process(module: Any, text: str, loss: Tensor) -> None:
    subprocess.run(["sh", "-c", f"echo '{text}' >> {folder()}/lines"], check=True)


def by_thread(module: Any, text: str, loss: Tensor) -> None:
    thread = threading.Thread(target=ROWS.append, args=(text,))
    thread.start()
    thread.join()


def tells(name: str, tell: Callable[[Any, str, Tensor], Any], **options: Any) -> Entry:
    return Entry(name, lambda: Tells(tell), outside=outside, alone="tells somebody", **options)


ENTRIES = [
    tells("prints", prints),
    tells("logs a message", by(MESSAGES)),
    tells("logger of another trainer", lambda m, text, loss: LOGGER.log_metrics({text: loss.item()}, step=0)),
    *alike(
        tells("appends to a file", appends),
        tells("prints values, exceptions caught", prints_values),
        tells("prints to the error stream", to_stderr),
        tells("message under Lightning's name", by(logging.getLogger("lightning.pytorch.zoo"))),
        tells("message under torch's name", by(logging.getLogger("torch.zoo"))),
        tells("rows of a CSV file", writes_rows, long=True),
        tells("torch.save", saves),
        tells("torch.save, exceptions caught", catching(saves)),
        tells("system calls", calls_system),
        tells("system calls, exceptions caught", catching(calls_system)),
        tells("database", inserts),
        tells("thread", by_thread),
        tells(
            "calls a logger, exceptions caught", catching(lambda m, text, loss: m.logger.log_metrics({"mine": 1.0}, 0))
        ),
    ),
    tells("process", starts_process, long=True),
]
