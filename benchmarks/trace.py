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


class Trace:
    """Notes each call of a function of the library between a first and a last function, once."""

    def __init__(self, begins: Callable[[str], bool], ends: Callable[[str], bool]) -> None:
        self.begins, self.ends = begins, ends
        self.calls: list[tuple[str, str]] = []
        self.state = "before"

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Note an event of the interpreter's profiler."""
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if not path.startswith(ROOT) or name.endswith(("comp>", "genexpr>")):
            return
        if self.state == "before" and self.begins(f"{event} {name}"):
            self.state = "within"
        elif self.state == "within" and event == "call":
            self.calls.append((path, name))
        if self.state == "within" and self.ends(f"{event} {name}"):
            self.state = "after"

    def __str__(self) -> str:
        functions, files = set(self.calls), {path for path, _ in self.calls}
        return f"{len(self.calls):6} calls {len(functions):5} functions {len(files):5} files"


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


class Occurrence:
    """Says whether an event is the second of its kind, or the given one."""

    def __init__(self, event: str, number: int = 2) -> None:
        self.event, self.number, self.count = event, number, 0

    def __call__(self, event: str) -> bool:
        """Return whether this is that time."""
        self.count += event == self.event
        return event == self.event and self.count == self.number


def main() -> None:
    """Print the three counts."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    always, never = (lambda event: True), (lambda event: False)
    traces = {
        "FedAvg(0.5)": Trace(always, never),
        "a result": Trace(Occurrence("return LocalTraining.train"), lambda event: event == "call RunningMean.add"),
        "a round": Trace(
            Occurrence("call RoundLoop.on_advance_start"), lambda event: event == "return RoundLoop.advance"
        ),
    }
    fit()  # what is made once in a process
    for name, trace in traces.items():
        sys.setprofile(trace)
        FedAvg(0.5) if name == "FedAvg(0.5)" else fit()
        sys.setprofile(None)
        print(f"{name:14}{trace}")


if __name__ == "__main__":
    main()
