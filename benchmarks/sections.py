"""The parts of a stacked round's time: timers around those of ``executor="vectorized"``, inside ``Trainer.fit``.

    python benchmarks/sections.py [--workloads W1 W2 W7 H2] [--rounds 30]

It is for workloads whose steps are programs. Counted is the time that the training thread has the processor; the first
ten rounds are left out.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import lightning as L
import torch
from federations import WORKLOADS, make_algorithm, make_clients, make_module
from lightning.pytorch.loggers import CSVLogger
from products import SERVED

from fl_lightning import TensorDataModule
from fl_lightning._lightning.log_replay import Journal
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.executors.stacked.program.maker import ProgramMaker
from fl_lightning.executors.stacked.program.program import Program
from fl_lightning.executors.stacked.program.steps import ProgramSteps
from fl_lightning.executors.stacked.results import Results
from fl_lightning.executors.stacked.training import StackTraining

#: The parts. The time of a part is without that of others inside it.
SECTIONS = {
    "products: forward, backward, step": [(Program, "step")],
    "gathering batches": [(ProgramSteps, "_begin")],
    "logged numbers": [(ProgramSteps, "logged")],
    "tracing the step": [(ProgramMaker, "make")],
    "the loop over steps": [(StackTraining, "run")],
    "telling Lightning": [(Journal, "tell")],
    "the look for changes": [(VectorizedExecutor, "_look_for_changes")],
    "clients: start and result": [(LocalTraining, "begin"), (Results, "hand_in")],
    "other work of the executor": [(VectorizedExecutor, "run")],
}
SKIPPED = 10


class Sections:
    """Sums the time of each part."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[float] = []  # the time of parts inside of each part that is at work

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Put timers around the parts."""
        with ExitStack() as stack:
            for section, methods in SECTIONS.items():
                for owner, name in methods:
                    stack.enter_context(mock.patch.object(owner, name, self._around(section, getattr(owner, name))))
            yield

    def _around(self, section: str, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._counted(section):
                result = method(*args, **kwargs)
            return self._each(section, result) if isinstance(result, Iterator) else result

        return timed

    def _each(self, section: str, results: Iterator[Any]) -> Iterator[Any]:
        """Count the time until each result, and not what is done with it."""
        while True:
            with self._counted(section):
                result = next(results, None)
            if result is None:
                return
            yield result

    @contextmanager
    def _counted(self, section: str) -> Iterator[None]:
        begun = time.thread_time()
        self._open.append(0.0)
        try:
            yield
        finally:
            seconds = time.thread_time() - begun
            self.seconds[section] += seconds - self._open.pop()
            if self._open:
                self._open[-1] += seconds


class RoundTimer(L.Callback):
    """Notes each round's time; forgets the parts' of the first rounds."""

    def __init__(self, sections: Sections) -> None:
        self.sections, self.rounds, self._begun = sections, [], time.thread_time()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch < SKIPPED:
            self.sections.seconds.clear()
        else:
            self.rounds.append(time.thread_time() - self._begun)
        self._begun = time.thread_time()


def measure(name: str, rounds: int) -> None:
    """Print the milliseconds of a workload's round, by part."""
    work, sections = WORKLOADS[name], Sections()
    timer = RoundTimer(sections)
    data = TensorDataModule(make_clients(work), batch_size=work.batch_size)
    with tempfile.TemporaryDirectory() as folder, sections.timed():
        trainer = L.Trainer(
            max_epochs=SKIPPED + rounds,
            accelerator="cpu",
            callbacks=[make_algorithm(name, work, "vectorized"), timer],
            logger=CSVLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(make_module(name, work.lr), datamodule=data)
    whole = sum(timer.rounds)
    rest = {"Lightning's round: hooks, logs, the server": whole - sum(sections.seconds.values())}
    print(f"{name}: {1e3 * statistics.mean(timer.rounds):.1f} ms a round")
    for section, seconds in {**dict.fromkeys(SECTIONS, 0.0), **sections.seconds, **rest}.items():
        print(f"    {section:45}{1e3 * seconds / len(timer.rounds):8.2f} ms{seconds / whole:8.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2", "W7", "H2"], choices=list(SERVED))
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for name in options.workloads:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
