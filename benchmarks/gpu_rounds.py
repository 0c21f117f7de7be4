"""Rounds on a GPU: seconds, samples a second, memory, kernel launches, and the least time that the card allows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from federations import WORKLOADS, Clients, Workload, make_clients, make_network
from fits import first_samples, fit
from graphed_loop import GraphedLoop
from plain_loop import PlainLoop
from products import SERVED, BareProducts
from torch.nn import functional as F
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from fl_lightning.executors import SequentialExecutor, VectorizedExecutor

LOOPS = {"plain": PlainLoop, "graphs": GraphedLoop, "bare": BareProducts}
#: Rounds at the start that are not timed: trials, graphs, memory.
_LEFT_OUT = 2
#: Rounds that are timed, at least and at most.
_FEWEST = 3
_MOST = 200


def loops_of(name: str, device: str) -> list[str]:
    """Return the loops by hand that have a workload."""
    loops = ["plain"]
    if device == "cuda" and WORKLOADS[name].optimizer == "SGD" and name != "W6":
        loops.append("graphs")
    if name in SERVED:
        loops.append("bare")
    return loops


def by_hand(name: str, kind: str, per_round: int, device: str, seconds: float) -> dict[str, Any]:
    """Time rounds of the plain loop, of the loop with CUDA graphs, or of bare products."""
    work, clients = _cohort_of(name, per_round)
    _forget_peak(device)
    loop = LOOPS[kind](name, clients, _clock_of(device), work, device)
    generator = torch.Generator().manual_seed(2)
    is_over = _after(seconds, _LEFT_OUT)
    drawn: list[list[int]] = []
    taken: list[float] = []
    while not is_over(len(taken), sum(taken)):
        cohort = torch.randperm(work.clients, generator=generator)[:per_round].tolist()
        drawn.append(cohort)
        taken.append(loop.round(cohort))
    return _figures(work, clients, taken[_LEFT_OUT:], drawn[_LEFT_OUT:], device)


def by_fit(
    name: str, way: str, per_round: int, device: str, seconds: float, at_once: int | None = None, every: int = 0
) -> dict[str, Any]:
    """Time rounds inside ``Trainer.fit``; the third one is profiled, and not timed.

    Args:
        name: The workload.
        way: ``"sequential"``, ``"vectorized"`` or ``"auto"``.
        per_round: Clients of a round.
        device: ``"cuda"`` or ``"cpu"``.
        seconds: How long to train.
        at_once: Clients at once at most.
        every: Rounds between validations on 10,000 samples; 0 for none.
    """
    work, clients = _cohort_of(name, per_round)
    _forget_peak(device)
    told: dict[str, Any] = {}
    stopwatch = {
        "clock": _clock_of(device),
        "profiled": _LEFT_OUT,
        "is_over": _after(seconds, _LEFT_OUT + 1),
    }
    executor: Any = way
    if way == "sequential":
        executor = SequentialExecutor()
    elif way == "vectorized":
        executor = VectorizedExecutor(at_once)
    drawn = fit(
        name,
        work,
        clients,
        executor,
        told.update,
        stopwatch,
        first_samples(clients, 200, 10_000),
        max_epochs=-1,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        limit_val_batches=1.0 if every else 0,
        check_val_every_n_epoch=every or 1,
    )
    first_timed = _LEFT_OUT + 1
    found = _figures(work, clients, told["rounds"][first_timed:], drawn[first_timed:], device)
    steps = max(_batches(work, clients, drawn[_LEFT_OUT]))
    found["used"] = told["used"]
    found["kernels"] = told["kernels"]
    found["launches_a_step"] = told["launches"] / steps
    if device == "cuda":
        found["busy"] = told["device_seconds"] / found["seconds"]
    return found


def needs(name: str) -> dict[str, float]:
    """Return what a sample's training computes, and what a client's step and its samples move at least.

    A step reads each weight forwards and backwards, and reads and writes it in the update; a sample is read forwards
    and for the weights' gradient. Numbers have four bytes. A workload with LSTM layers is counted by hand, since torch
    has no count for them.
    """
    work = WORKLOADS[name]
    network = make_network(name)
    size = sum(parameter.numel() for parameter in network.parameters())
    one_batch = replace(work, clients=1, samples=work.batch_size, sigma=0.0)
    [(x, _)] = make_clients(one_batch)
    classes = torch.zeros(len(x), dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(x), classes).backward()
    flops = counter.get_total_flops() / len(x)
    if work.characters:
        gates = 4 * 256 * (8 + 256) + 4 * 256 * (256 + 256)
        logits = 256 * 80
        flops = 6.0 * (work.shape[0] * gates + logits)
    return {
        "flops_a_sample": flops,
        "bytes_a_step": 16.0 * size,
        "bytes_a_sample": 8.0 * x[0].numel(),
    }


def peaks(device: str) -> dict[str, float]:
    """Return the device's rates: products in three precisions, copies, launches, uploads from pinned memory."""

    def seconds(statement: str, **names: torch.Tensor) -> float:
        return Timer(statement, globals=names).blocked_autorange(min_run_time=0.2).median

    is_gpu = device == "cuda"
    side = 8192 if is_gpu else 512
    length = 2**28 if is_gpu else 2**22
    found = {}
    for precision in ("float32", "tf32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        a = torch.randn(side, side, device=device, dtype=dtype)
        found[f"{precision}_flops"] = 2 * side**3 / seconds("a @ a", a=a)
    torch.backends.cuda.matmul.allow_tf32 = False
    block = torch.randn(length, device=device)
    host = torch.randn(length, pin_memory=is_gpu)
    target = torch.empty_like(block)
    copying = seconds("target.copy_(block)", target=target, block=block)
    found["bytes_a_second"] = 2 * block.nbytes / copying
    uploading = seconds("target.copy_(host)", target=target, host=host)
    found["upload_bytes_a_second"] = host.nbytes / uploading
    found["launch_seconds"] = seconds("one.add_(1)", one=torch.zeros(1, device=device))
    return found


def _cohort_of(name: str, per_round: int) -> tuple[Workload, Clients]:
    """Return a workload with another number of clients in a round, and its clients."""
    work = WORKLOADS[name]
    work = replace(work, per_round=per_round, clients=max(work.clients, per_round))
    return work, make_clients(work)


def _clock_of(device: str) -> Callable[[], float]:
    """Return a clock that waits until the device has done all that it was given."""

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock if device == "cuda" else time.perf_counter


def _forget_peak(device: str) -> None:
    """Begin again to note the largest memory of a GPU."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _after(seconds: float, left_out: int) -> Callable[[int, float], bool]:
    """Return a function that says whether rounds are enough, by their number and their seconds."""

    def is_over(rounds: int, spent: float) -> bool:
        needed = _FEWEST if spent > seconds else _MOST
        return rounds >= left_out + needed

    return is_over


def _figures(
    work: Workload, clients: Clients, taken: Sequence[float], drawn: Sequence[Sequence[int]], device: str
) -> dict[str, Any]:
    """Return the median and the quartiles of rounds' seconds, samples a second, steps and memory."""
    samples = 0
    batches = []
    for cohort in drawn:
        samples += sum(len(clients[client][1]) for client in cohort)
        batches.append(_batches(work, clients, cohort))
    low, middle, high = statistics.quantiles(taken, n=4)
    return {
        "clients_a_round": work.per_round,
        "rounds": len(taken),
        "seconds": middle,
        "quartiles": [low, high],
        "samples_a_second": samples / sum(taken),
        "steps_a_round": statistics.mean(map(max, batches)),
        "client_steps": statistics.mean(map(sum, batches)),
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def _batches(work: Workload, clients: Clients, drawn: Sequence[int]) -> list[int]:
    """Return the numbers of batches of some clients."""
    return [math.ceil(len(clients[client][1]) / work.batch_size) for client in drawn]
