"""Seconds per round of each executor inside ``Trainer.fit`` against a plain PyTorch loop, in interleaved pairs.

Between two rounds of ``Trainer.fit`` (CSV logger, ``self.log``, callbacks, with ``--progress-bar`` the bar) the same
round, of the same clients, runs in a plain loop, in a process of its own without Lightning: one model, one client after
the other, tensors in memory, a new optimizer for each client; the short rounds of W2 and H2 go in turn by
tens. The first rounds are left out; the table gives medians and the range of the pairs' ratios. Each row is a process
of its own, with the peak of the memory of its process tree. With ``--bare`` the same round runs a third time, as bare
batched products without any framework (W1, W2, W7, H1, H2, M1), the limit of what stacks can reach. With
``--one-process`` the loops go in turn in our own process, so that none finds its caches used by another process.

    python benchmarks/workloads.py [--short] [--workloads W1 W2] [--executors sequential vectorized] [--devices 1 2]
        [--bare] [--one-process] [--clock processor]

W1 784-200-200-10 perceptron, W2 logistic regression, W3 32-64 convolutions on 3x32x32, W4 character LSTM, W5 the last
block of a MobileNetV2 from cached features under RADFed, W6 the perceptron of W1 under FedDyn, W7 the paper's Covertype
round, H1 and H2 a perceptron and a logistic regression on clients of log-normal sizes, M1 the perceptron of W1 with a
metric object, D1 and N1 perceptrons of a user's own on such clients: dropout with Adam, layer normalisation with AdamW,
P1 the benchmark of pfl-research on CIFAR-10 (50 of 1,000 users of 50 samples, two convolutions and dropout).
Data are random. ``--clock processor`` counts the time that the training thread has the processor, for
machines on which others work; it is for one process and one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from subprocess import PIPE
from typing import Any

import torch
from federations import BLOCKS, ROUNDS, WORKLOADS, make_algorithm, make_clients, make_module
from plain_loop import CLOCKS, Beside, PlainLoop, PlainProcess, make_loop
from products import SERVED

#: Of the best of three pairs in the short form: about three times what a quiet machine shows, so noise does not fail.
LIMITS = {"W1 sequential": 3.0, "W1 vectorized": 1.6, "W2 sequential": 3.5, "W2 vectorized": 0.7}


def memory_of_tree(pid: int) -> float:
    """Return the resident memory of a process and its children without the plain loop beside them, in GB."""
    import psutil

    total = 0
    try:
        own = psutil.Process(pid)
        for process in [own, *own.children(recursive=True)]:
            if not any(argument.endswith("plain_loop.py") for argument in process.cmdline()):
                info = process.memory_full_info()
                total += getattr(info, "pss", info.rss)
    except psutil.Error:  # one has just ended
        pass
    return total / 1e9


class MemoryWatch(threading.Thread):
    """Notes the peak of a process tree's memory, shared pages counted once, for 2 % of a core or little more."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak, self._pid = 0.0, pid
        self.start()

    def run(self) -> None:
        while True:
            begun = time.perf_counter()
            self.peak = max(self.peak, memory_of_tree(self._pid))
            time.sleep(min(2.0, max(0.5, 50 * (time.perf_counter() - begun))))  # the kernel goes through all pages


def fit(
    name: str,
    executor: str,
    devices: int,
    rounds: int,
    progress_bar: bool,
    beside: Sequence[Beside] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Train inside ``Trainer.fit``; return the seconds of each round, and of those that run between them."""
    import lightning as L
    from lightning.pytorch.loggers import CSVLogger

    from fl_lightning import TensorDataModule

    warnings.filterwarnings("ignore")
    work = WORKLOADS[name]
    clients, algorithm = make_clients(work), make_algorithm(name, work, executor)
    timer = make_timer(algorithm.sampler, beside, clock, BLOCKS.get(name, 1) if rounds else 0)
    sample = tuple(torch.cat(tensors) for tensors in zip(*clients[:10], strict=True))
    data = TensorDataModule(clients, val=sample, batch_size=work.batch_size, eval_batch_size=512)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=rounds * BLOCKS.get(name, 1) + 1,
            accelerator="cpu",
            devices=devices,
            strategy="ddp_fork" if devices > 1 else "auto",
            callbacks=[algorithm, timer],
            logger=CSVLogger(folder),
            enable_progress_bar=progress_bar,
            enable_checkpointing=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=rounds * BLOCKS.get(name, 1) + 1,
        )
        result = make_report(timer)
        trainer.callbacks.append(result)
        trainer.fit(make_module(name, work.lr), datamodule=data)
        return json.loads(result.path.read())


def describe(executor: Any) -> str:
    """Return what an executor did."""
    choice, cause = getattr(executor, "choice", None), getattr(executor, "cause", None)
    if choice is not None:
        layout = ", channels last" if choice.channels_last else ""
        return f"{choice.executor}{layout}: {choice.cause}"
    return f"one after the other: {cause}" if cause else ""


def make_timer(sampler: Any, beside: Sequence[Beside], clock: Callable[[], float], block: int) -> Any:
    """Return a callback that times blocks of rounds, and the same clients in the loops beside after each.

    Without a block's length, 0, it prints the seconds from the process's start to each round's end.
    """
    import lightning as L
    import psutil

    class Timer(L.Callback):
        def __init__(self) -> None:
            self.begun, self.pairs, self.block = 0.0, [], []

        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            trainer.strategy.barrier()
            self.begun = clock()

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            trainer.strategy.barrier()
            seconds = clock() - self.begun
            if not block:
                print("FIRST", time.time() - psutil.Process().create_time(), flush=True)
            self.block.append(seconds)
            if beside and (len(self.block) == block or not self.pairs):
                mine = beside if trainer.is_global_zero else ()
                clients = sampler.draw.rounds[-len(self.block) :]
                others = [statistics.mean([process.round(drawn) for drawn in clients]) for process in mine]
                self.pairs.append((statistics.mean(self.block), *others))
                self.block = []
            trainer.strategy.barrier()
            self.begun = clock()  # from one round's end to the next one's: all that Lightning does counts

    return Timer()


def make_report(timer: Any) -> Any:
    """Return a callback that writes the figures to a file: with forked processes the trainer's own are lost."""
    import lightning as L

    class Report(L.Callback):
        def __init__(self) -> None:
            self.path = tempfile.NamedTemporaryFile("r", suffix=".json")  # noqa: SIM115

        def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if trainer.is_global_zero:
                used = describe(trainer.fit_loop.executor)
                figures = {"pairs": timer.pairs, "accuracy": float(trainer.callback_metrics["val_acc"]), "used": used}
                with open(self.path.name, "w") as file:
                    json.dump(figures, file)

    return Report()


def start_up(name: str, pairs: int = 5) -> None:
    """Print the seconds from a process's start to its first finished round, against a plain loop beside Lightning."""
    seconds: dict[str, list[float]] = {"plain": [], "auto": []}
    for _ in range(pairs):
        for executor, own in seconds.items():
            command = [sys.executable, __file__, "--one", name, executor, "1", "0"]
            finished = subprocess.run(command, capture_output=True, text=True, check=True)
            own.append(float(finished.stdout.split("FIRST ")[1].split()[0]))
    ratios = sorted(ours / plain for ours, plain in zip(seconds["auto"], seconds["plain"], strict=True))
    medians = [statistics.median(values) for values in (seconds["auto"], seconds["plain"], ratios)]
    spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    print(f"{name} first round after {medians[0]:.2f} s, plain {medians[1]:.2f} s, ratio {medians[2]:.2f} {spread}")


def first_round(name: str, executor: str) -> None:
    """Train one round and print the seconds since this process began."""
    import lightning  # noqa: F401 (the plain loop has it beside it)
    import psutil

    if executor == "plain":
        PlainLoop(name, make_clients(WORKLOADS[name])).round()
        print("FIRST", time.time() - psutil.Process().create_time())
    else:
        fit(name, executor, 1, 0, progress_bar=False)


def one_row(options: argparse.Namespace) -> None:
    """Measure one row in this process and print it as JSON."""
    name, executor, devices, rounds = options.one[0], options.one[1], int(options.one[2]), int(options.one[3])
    if not rounds:
        first_round(name, executor)
        return
    if executor == "plain":
        loop = PlainLoop(name, make_clients(WORKLOADS[name]), CLOCKS[options.clock])
        pairs = [(seconds, seconds) for seconds in (loop.round() for _ in range(rounds * BLOCKS.get(name, 1) + 1))]
        print("ROW", json.dumps({"pairs": pairs, "accuracy": loop.accuracy()}))
        return
    kinds = ["plain", "bare"] if options.bare and name in SERVED else ["plain"]
    clock = CLOCKS[options.clock]
    beside: list[Beside] = [PlainProcess(name, kind, options.clock) for kind in kinds]
    if options.one_process:
        beside = [make_loop(name, kind, clock) for kind in kinds]
    figures = fit(name, executor, devices, rounds, options.progress_bar, beside, clock)
    print("ROW", json.dumps(figures))


def measure(name: str, executor: str, devices: int, rounds: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """Measure one row in a process of its own."""
    command = [sys.executable, __file__, "--one", name, executor, str(devices), str(rounds), "--clock", options.clock]
    flags = ("progress_bar", "bare", "one_process")
    command += [f"--{flag.replace('_', '-')}" for flag in flags if getattr(options, flag)]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
        watch = MemoryWatch(process.pid)
        output, errors = process.communicate()
    lines = [line for line in output.splitlines() if line.startswith("ROW ")]
    if not lines:
        print(f"{name} {executor}: failed\n{errors[-2000:]}")
        return None
    return {**json.loads(lines[-1][4:]), "peak": watch.peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--executors", nargs="+", default=["sequential", "vectorized", "auto"])
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--short", action="store_true", help="three rounds of W1 and W2; fails beyond wide bounds")
    parser.add_argument("--progress-bar", action="store_true", help="draw the progress bar")
    parser.add_argument("--bare", action="store_true", help="bare batched products beside, where they serve")
    parser.add_argument("--one-process", action="store_true", help="all loops in turn in one process, not in one each")
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS), help="the processor's is for busy machines")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--start-up", action="store_true", help="seconds to the first finished round instead")
    options = parser.parse_args()
    if options.one:
        one_row(options)
        return
    if options.start_up:
        for name in options.workloads:
            start_up(name)
        return
    if options.short:
        options.workloads, options.executors, options.devices = ["W1", "W2"], ["sequential", "vectorized"], [1]
    if options.clock == "processor" and options.devices != [1]:
        parser.error("--clock processor counts one process: give --devices 1")
    if options.one_process and options.devices != [1]:
        parser.error("--one-process has room for one process: give --devices 1")
    best = print_table(options)
    if options.short:
        slow = [place for place, limit in LIMITS.items() if best.get(place, float("inf")) > limit]
        if slow:
            sys.exit(
                "Failed, or slower than its limit: " + ", ".join(f"{name} (limit {LIMITS[name]})" for name in slow)
            )


def print_table(options: argparse.Namespace) -> dict[str, float]:
    """Print the table and return the smallest ratio of each row's pairs."""
    header = f"{'':4}{'executor':12}{'devices':>8}{'s a round':>11}{'plain':>9}{'ratio':>7}{'range':>15}"
    print(header + (f"{'bare':>9}{'ratio':>7}{'range':>15}" if options.bare else "") + f"{'GB':>7}{'acc':>7}")
    best = {}
    for name in options.workloads:
        rounds = 3 if options.short else ROUNDS[name]
        rows = [] if options.short else [("plain", 1)]
        rows += [(executor, devices) for devices in options.devices for executor in options.executors]
        for executor, devices in rows:
            row = measure(name, executor, devices, rounds, options)
            if row is None:
                continue
            ours, *others = (list(values) for values in zip(*row["pairs"][1:], strict=True))
            best[f"{name} {executor}"] = min(a / b for a, b in zip(ours, others[0], strict=True))
            figures = f"{statistics.median(ours):11.4f}" + "".join(beside_figures(ours, other) for other in others)
            figures += " " * (31 if options.bare and len(others) == 1 else 0) + f"{row['peak']:7.2f}"
            print(f"{name:4}{executor:12}{devices:8d}{figures}{row['accuracy']:7.3f} {row.get('used', '')}", flush=True)
    return best


def beside_figures(ours: Sequence[float], other: Sequence[float]) -> str:
    """Return the median of the seconds beside ours, and of the pairs' ratios, with their range."""
    ratios = sorted(a / b for a, b in zip(ours, other, strict=True))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return f"{statistics.median(other):9.4f}{statistics.median(ratios):7.2f}{spread:>15}"


if __name__ == "__main__":
    main()
