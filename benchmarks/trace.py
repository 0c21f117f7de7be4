"""Counts the calls of the library's own functions in one FedAvg fit.

Run it by ``python benchmarks/trace.py``. It prints the calls of the constructor ``FedAvg(0.5)``, of a result's way from
the end of its client's training into the running mean, and of a whole round of two clients with two batches each (the
second round, by the sequential executor). Comprehensions are part of the function that they stand in.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch

import fl_lightning
from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.models import LogisticRegressionClassifier

ROOT = str(Path(fl_lightning.__file__).parent)


Event = tuple[str, str, str]


def record(work: Callable[[], Any]) -> list[Event]:
    """Return the events of the interpreter's profiler in functions of the library: kind, function and file."""
    events: list[Event] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        is_comprehension = code.co_qualname.endswith(("comp>", "genexpr>"))
        if code.co_filename.startswith(ROOT) and not is_comprehension:
            events.append((event, code.co_qualname, code.co_filename))

    sys.setprofile(note)
    work()
    sys.setprofile(None)
    return events


def between(events: list[Event], first: tuple[str, str], last: tuple[str, str]) -> list[Event]:
    """Return the events after the second one of a kind, until one of another kind."""
    kinds = [event[:2] for event in events]
    begin = kinds.index(first, kinds.index(first) + 1)
    return events[begin + 1 : kinds.index(last, begin) + 1]


def fit() -> None:
    """Train two rounds of two of four clients."""
    torch.manual_seed(0)
    clients = [(torch.randn(16, 6), torch.randint(3, (16,))) for _ in range(4)]
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[FedAvg(0.5, executor="sequential")],
    )
    trainer.fit(LogisticRegressionClassifier(6, 3), datamodule=TensorDataModule(clients, batch_size=8))


def main() -> None:
    """Print the three counts."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # The first fit makes what is made once in a process.
    fit()
    events = record(fit)
    constructor = record(lambda: FedAvg(0.5))
    print_calls("FedAvg(0.5)", constructor[1:])
    print_calls("a result", between(events, ("return", "LocalTraining.train"), ("call", "RunningMean.add")))
    print_calls("a round", between(events, ("call", "RoundLoop.on_advance_start"), ("return", "RoundLoop.advance")))


def print_calls(title: str, events: list[Event]) -> None:
    """Print the number of calls, and of the functions and files that they reach."""
    calls = [(name, path) for event, name, path in events if event == "call"]
    functions = len(set(calls))
    files = len({path for _, path in calls})
    print(f"{title:14}{len(calls):6} calls {functions:5} functions {files:5} files")


if __name__ == "__main__":
    main()
