"""Rounds on a GPU: seconds, samples a second, memory, kernel launches, and the least time that the card allows."""

from __future__ import annotations

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
_LEFT_OUT = 2  # rounds at the start: trials, graphs, memory
_FEWEST, _MOST = 3, 200  # rounds that are timed


def loops_of(name: str, device: str) -> list[str]:
    """Return the loops by hand that have a workload."""
    graphs = device == "cuda" and WORKLOADS[name].optimizer == "SGD" and name != "W6"
    return ["plain", *["graphs"] * graphs, *["bare"] * (name in SERVED)]


def by_hand(name: str, kind: str, per_round: int, device: str, seconds: float) -> dict[str, Any]:
    """Time rounds of the plain loop, of the loop with CUDA graphs, or of bare products."""
    work, clients = _cohort_of(name, per_round)
    _forget_peak(device)
    loop = LOOPS[kind](name, clients, _clock_of(device), work, device)
    generator, is_over = torch.Generator().manual_seed(2), _after(seconds, _LEFT_OUT)
    drawn: list[list[int]] = []
    taken: list[float] = []
    while not is_over(len(taken), sum(taken)):
        drawn.append(torch.randperm(work.clients, generator=generator)[:per_round].tolist())
        taken.append(loop.round(drawn[-1]))
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
    drawn = fit(
        name,
        work,
        clients,
        {"sequential": SequentialExecutor(), "vectorized": VectorizedExecutor(at_once)}.get(way, way),
        told.update,
        stopwatch,
        first_samples(clients, 200, 10_000),
        max_epochs=-1,
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        limit_val_batches=1.0 if every else 0,
        check_val_every_n_epoch=every or 1,
    )
    found = _figures(work, clients, told["rounds"][_LEFT_OUT + 1 :], drawn[_LEFT_OUT + 1 :], device)
    steps = max(_batches(work, clients, drawn[_LEFT_OUT]))
    found |= {"used": told["used"], "kernels": told["kernels"], "launches_a_step": told["launches"] / steps}
    return found | ({"busy": told["device_seconds"] / found["seconds"]} if device == "cuda" else {})


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


def peaks(device: str) -> dict[str, float]:
    """Return the device's rates: products in three precisions, copies, launches, uploads from pinned memory."""

    def seconds(statement: str, **names: torch.Tensor) -> float:
        return Timer(statement, globals=names).blocked_autorange(min_run_time=0.2).median

    n, length = (8192, 2**28) if device == "cuda" else (512, 2**22)
    found = {}
    for precision, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("bfloat16", torch.bfloat16)):
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        a = torch.randn(n, n, device=device, dtype=dtype)
        found[f"{precision}_flops"] = 2 * n**3 / seconds("a @ a", a=a)
    torch.backends.cuda.matmul.allow_tf32 = False
    block, host = torch.randn(length, device=device), torch.randn(length, pin_memory=device == "cuda")
    target = torch.empty_like(block)
    found["bytes_a_second"] = 2 * block.nbytes / seconds("target.copy_(block)", target=target, block=block)
    found["upload_bytes_a_second"] = host.nbytes / seconds("target.copy_(host)", target=target, host=host)
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
    """Begin to note the largest memory of a GPU anew."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _after(seconds: float, left_out: int) -> Callable[[int, float], bool]:
    """Return whether rounds are enough, by their number and their seconds."""
    return lambda rounds, spent: rounds >= left_out + (_FEWEST if spent > seconds else _MOST)


def _figures(
    work: Workload, clients: Clients, taken: Sequence[float], drawn: Sequence[Sequence[int]], device: str
) -> dict[str, Any]:
    """Return the median and the quartiles of rounds' seconds, samples a second, steps and memory."""
    samples = sum(len(clients[client][1]) for own in drawn for client in own)
    batches = [_batches(work, clients, own) for own in drawn]
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
    return [-(-len(clients[client][1]) // work.batch_size) for client in drawn]
