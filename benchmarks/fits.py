"""Fits of the workloads by ``Trainer.fit``, and the stopwatch that times their rounds."""

from __future__ import annotations

import logging
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
from federations import ByHand, Clients, Workload, make_algorithm, make_module
from lightning.pytorch.loggers import CSVLogger
from plain_loop import LoopProcess
from torch.profiler import ProfilerActivity, profile

from fl_lightning import TensorDataModule


class Stopwatch(L.Callback):
    """Times rounds from one's end to the next one's: all that Lightning does counts.

    Args:
        drawn: The clients of each round so far.
        tell: Gets the figures at the fit's end, in the first process.
        clock: Tells the time.
        beside: Loops that train the same clients, outside of the time.
        block: Rounds after which they do so; the first round is a block of its own.
        is_over: Whether the fit ends, by the number of its rounds and their seconds.
        profiled: A round that is profiled.
    """

    def __init__(
        self,
        drawn: Sequence[Sequence[int]],
        tell: Callable[[dict[str, Any]], Any],
        clock: Callable[[], float] = time.perf_counter,
        beside: Sequence[ByHand | LoopProcess] = (),
        block: int = 1,
        is_over: Callable[[int, float], bool] = lambda rounds, seconds: False,
        profiled: int | None = None,
    ) -> None:
        self._drawn = drawn
        self._tell = tell
        self._clock = clock
        self._loops = beside
        self._block = block
        self._is_over = is_over
        self._profiled = profiled
        self._rounds: list[float] = []
        self._beside: list[list[float]] = []
        self._figures: dict[str, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.strategy.barrier()
        self._begun = self._clock()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == self._profiled:
            self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profile.__enter__()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.strategy.barrier()
        self._rounds.append(self._clock() - self._begun)
        if trainer.current_epoch == self._profiled:
            self._profile.__exit__(None, None, None)
            self._figures |= read_profile(self._profile)
        if trainer.is_global_zero and trainer.current_epoch % self._block == 0:
            for clients in self._drawn[len(self._beside) :]:
                self._beside.append([loop.round(clients) for loop in self._loops])
        trainer.should_stop = self._is_over(len(self._rounds), sum(self._rounds))
        trainer.strategy.barrier()
        self._begun = self._clock()

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        peak = float(trainer.strategy.reduce(torch.tensor(peak_memory()), reduce_op="sum"))
        if trainer.is_global_zero:
            loop: Any = trainer.fit_loop
            figures = {
                "rounds": self._rounds,
                "beside": self._beside,
                "accuracy": float(trainer.callback_metrics.get("val_acc", 0.0)),
                "peak_gb": peak,
                "used": loop.executor.describe(),
            }
            self._tell(self._figures | figures)


def fit(
    name: str,
    work: Workload,
    clients: Clients,
    executor: Any,
    tell: Callable[[dict[str, Any]], Any],
    stopwatch: dict[str, Any],
    val: Any,
    loss_alone: bool = False,
    **trainer: Any,
) -> list[list[int]]:
    """Train a workload's network, with nothing on the screen or on the disk but a CSV log.

    Args:
        name: Name of the workload.
        work: The workload.
        clients: Its clients.
        executor: How clients are trained.
        tell: Gets the figures of the :class:`Stopwatch` in the first process.
        stopwatch: Its other arguments.
        val: Samples for validation.
        loss_alone: Whether the module logs its loss alone.
        **trainer: Arguments of the Trainer.

    Returns:
        The clients of each round; in the first process alone.
    """
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    algorithm = make_algorithm(name, work, executor)
    drawn: list[list[int]] = algorithm.sampler.draw.rounds
    data = TensorDataModule(clients, val=val, batch_size=work.batch_size, eval_batch_size=1000)
    module = make_module(name, work.lr, loss_alone)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "callbacks": [algorithm, Stopwatch(drawn, tell, **stopwatch)],
            "logger": CSVLogger(folder),
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "enable_progress_bar": False,
            "num_sanity_val_steps": 0,
        }
        options.update(trainer)
        L.Trainer(**options).fit(module, datamodule=data)
    return drawn


def first_samples(clients: Clients, most_clients: int, most_samples: int | None = None) -> tuple[torch.Tensor, ...]:
    """Return the samples of the first clients, for validation."""
    first = clients[:most_clients]
    x = torch.cat([x for x, _ in first])
    y = torch.cat([y for _, y in first])
    return x[:most_samples], y[:most_samples]


def peak_memory() -> float:
    """Return the largest resident memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def read_profile(profiled: profile) -> dict[str, Any]:
    """Return the launches of a round, the seconds of its kernels together, and of the longest ones."""
    launches = 0
    seconds = {}
    for event in profiled.key_averages():
        if "LaunchKernel" in event.key or "GraphLaunch" in event.key:
            launches += event.count
        if event.self_device_time_total:
            seconds[event.key] = event.self_device_time_total / 1e6
    longest = sorted(seconds, key=lambda kernel: -seconds[kernel])[:12]
    return {
        "launches": launches,
        "device_seconds": sum(seconds.values()),
        "kernels": {kernel: seconds[kernel] for kernel in longest},
    }
