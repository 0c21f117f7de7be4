"""Rounds on a GPU: seconds, samples a second, memory, kernel launches, and the least time that the card allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from federations import WORKLOADS, Clients, Workload, make_algorithm, make_clients, make_network
from fits import first_samples, fit
from graphed_loop import GraphedLoop
from plain_loop import PlainLoop
from products import SERVED, BareProducts
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from fl_lightning.executors import SequentialExecutor, VectorizedExecutor

_LEFT_OUT = 2  # rounds at a fit's start: trials, graphs, memory
_FEWEST, _MOST = 3, 200  # rounds that are timed


class Device:
    """The device on which everything runs."""

    def __init__(self, name: str) -> None:
        self.name, self.on_gpu = name, name == "cuda"

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def clock(self) -> float:
        """Return the time at which the device has done all that it was given, in seconds."""
        self.wait()
        return time.perf_counter()

    def forget_peak(self) -> None:
        """Begin to note the largest memory anew."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float | None:
        """Return the largest memory since then, in GB."""
        return torch.cuda.max_memory_allocated() / 1e9 if self.on_gpu else None


def cohort_of(name: str, per_round: int) -> tuple[Workload, Clients]:
    """Return a workload with another number of clients in a round, and its clients."""
    work = WORKLOADS[name]
    work = replace(work, per_round=per_round, clients=max(work.clients, per_round))
    return work, make_clients(work)


def by_hand(name: str, kind: str, per_round: int, device: Device, seconds: float) -> dict[str, Any]:
    """Time rounds of the plain loop, of the loop with CUDA graphs, or of bare products."""
    work, clients = cohort_of(name, per_round)
    device.forget_peak()
    loop = {"plain": PlainLoop, "graphs": GraphedLoop, "bare": BareProducts}[kind](
        name, clients, device.clock, work, device.name
    )
    generator, begun = torch.Generator().manual_seed(2), time.perf_counter()
    drawn: list[list[int]] = []
    taken: list[float] = []
    while len(taken) < _LEFT_OUT + _FEWEST or (time.perf_counter() - begun < seconds and len(taken) < _MOST):
        drawn.append(torch.randperm(work.clients, generator=generator)[:per_round].tolist())
        taken.append(loop.round(drawn[-1]))
    return figures(work, clients, taken, drawn) | {"peak_gb": device.peak()}


def serves(name: str, kind: str) -> bool:
    """Whether a loop by hand has a workload."""
    if kind == "bare":
        return name in SERVED
    return kind == "plain" or (WORKLOADS[name].optimizer == "SGD" and name != "W6")


def by_fit(
    name: str, way: str, per_round: int, device: Device, seconds: float, at_once: int | None = None, every: int = 0
) -> dict[str, Any]:
    """Time rounds inside ``Trainer.fit``; one of them is profiled, and not timed.

    Args:
        name: The workload.
        way: ``"sequential"``, ``"vectorized"`` or ``"auto"``.
        per_round: Clients of a round.
        device: The device.
        seconds: How long to train.
        at_once: Clients at once at most.
        every: Rounds between validations on 10,000 samples; 0 for none.
    """
    work, clients = cohort_of(name, per_round)
    executor: Any = {"sequential": SequentialExecutor(), "vectorized": VectorizedExecutor(at_once)}.get(way, way)
    algorithm, stopwatch = make_algorithm(name, work, executor), Stopwatch(device, seconds)
    device.forget_peak()
    trainer = fit(
        name,
        work,
        clients,
        first_samples(clients, 200, 10_000),
        1000,
        [algorithm, stopwatch],
        max_epochs=-1,
        accelerator="gpu" if device.on_gpu else "cpu",
        devices=1,
        limit_val_batches=1.0 if every else 0,
        check_val_every_n_epoch=every or 1,
    )
    drawn = algorithm.sampler.draw.rounds
    kept = [place for place in range(len(stopwatch.rounds)) if place != stopwatch.profiled]
    found = figures(work, clients, [stopwatch.rounds[i] for i in kept], [drawn[i] for i in kept])
    steps = longest(work, clients, drawn[stopwatch.profiled])
    return found | {
        "peak_gb": device.peak(),
        "used": trainer.fit_loop.executor.describe(),
        "launches_a_step": stopwatch.launches / steps,
        "busy": stopwatch.device_seconds / found["seconds"] if device.on_gpu else None,
        "kernels": stopwatch.kernels,
    }


class Stopwatch(L.Callback):
    """Times rounds and profiles one; ends the fit when its time is up."""

    profiled = _LEFT_OUT

    def __init__(self, device: Device, seconds: float) -> None:
        self.rounds: list[float] = []
        self.launches, self.device_seconds, self.kernels = 0, 0.0, {}
        self._device, self._seconds = device, seconds
        self._profile: profile | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._first = self._begun = self._device.clock()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == self.profiled:
            self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profile.__enter__()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        now = self._device.clock()
        self.rounds.append(now - self._begun)
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            self._read(self._profile)
            self._profile = None
        timed, spent = len(self.rounds) - _LEFT_OUT - 1, now - self._first
        trainer.should_stop = timed >= _FEWEST and (spent > self._seconds or timed >= _MOST)
        self._begun = self._device.clock()

    def _read(self, profiled: profile) -> None:
        events = profiled.key_averages()
        own = {event.key: event.self_device_time_total / 1e6 for event in events if event.self_device_time_total}
        self.device_seconds = sum(own.values())
        self.kernels = dict(sorted(own.items(), key=lambda item: -item[1])[:12])
        self.launches = sum(
            event.count for event in events if "LaunchKernel" in event.key or "GraphLaunch" in event.key
        )


def figures(work: Workload, clients: Clients, taken: Sequence[float], drawn: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the median and the quartiles of rounds' seconds, without the first ones, and samples a second."""
    taken, drawn = taken[_LEFT_OUT:], drawn[_LEFT_OUT:]
    samples = sum(len(clients[client][1]) for own in drawn for client in own)
    low, middle, high = statistics.quantiles(taken, n=4)
    return {
        "clients_a_round": work.per_round,
        "rounds": len(taken),
        "seconds": middle,
        "quartiles": [low, high],
        "samples_a_second": samples / sum(taken),
        "steps_a_round": statistics.mean(longest(work, clients, own) for own in drawn),
        "client_steps": statistics.mean(sum(batches(work, clients, own)) for own in drawn),
    }


def longest(work: Workload, clients: Clients, drawn: Sequence[int]) -> int:
    """Return the number of batches of the longest of some clients."""
    return max(batches(work, clients, drawn))


def batches(work: Workload, clients: Clients, drawn: Sequence[int]) -> list[int]:
    """Return the numbers of batches of some clients."""
    return [-(-len(clients[client][1]) // work.batch_size) for client in drawn]


def needs(name: str) -> dict[str, float]:
    """Return what a sample's training computes, and what a client's step and its samples move at least.

    A step reads each weight forwards and backwards, and reads and writes it in the update; a sample is read forwards
    and for the weights' gradient. Numbers have four bytes. A workload with LSTM layers is counted by hand, since torch
    has no count for them.
    """
    work = WORKLOADS[name]
    network = make_network(name)
    size = sum(parameter.numel() for parameter in network.parameters())
    x = make_clients(replace(work, clients=1, samples=work.batch_size, sigma=0.0))[0][0]
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(x), torch.zeros(len(x), dtype=torch.int64)).backward()
    flops = counter.get_total_flops() / len(x)
    if work.characters:
        gates = [4 * 256 * (8 + 256), 4 * 256 * (256 + 256)]
        flops = 6.0 * (work.shape[0] * sum(gates) + 256 * 80)
    return {"flops_a_sample": flops, "bytes_a_step": 16.0 * size, "bytes_a_sample": 8.0 * x[0].numel()}


def peaks(device: Device) -> dict[str, float]:
    """Return the device's rates: products in three precisions, copies, launches, uploads from pinned memory."""
    n, megabytes = (8192, 1024) if device.on_gpu else (512, 16)
    found = {}
    for precision, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bfloat16", torch.bfloat16, False),
    ):
        if device.on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(n, n, device=device.name, dtype=dtype) for _ in "ab")
        found[f"{precision}_flops"] = 2 * n**3 / _seconds(device, lambda a=a, b=b: a @ b)
    if device.on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = False
    block = torch.randn(megabytes * 2**18, device=device.name)
    target = torch.empty_like(block)
    found["bytes_a_second"] = 2 * block.nbytes / _seconds(device, lambda: target.copy_(block))
    one = torch.zeros(1, device=device.name)
    found["launch_seconds"] = _seconds(device, lambda: [one.add_(1) for _ in range(1000)]) / 1000
    if device.on_gpu:
        host = torch.randn(megabytes * 2**18).pin_memory()
        found["upload_bytes_a_second"] = host.nbytes / _seconds(device, lambda: target.copy_(host, non_blocking=True))
    return found


def _seconds(device: Device, work: Callable[[], Any], times: int = 10) -> float:
    """Return the median seconds of some work."""
    taken = []
    for _ in range(times + 3):
        begun = device.clock()
        work()
        taken.append(device.clock() - begun)
    return statistics.median(taken[3:])
