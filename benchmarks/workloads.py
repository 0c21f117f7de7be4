"""Seconds per round of each executor inside ``Trainer.fit`` against a plain PyTorch loop, in interleaved pairs.

Between two rounds of ``Trainer.fit`` (CSV logger, ``self.log``, callbacks, with ``--progress-bar`` the bar) the same
round, of the same clients, runs in a plain loop, in another process without Lightning: one model, one client after
the other, tensors in memory, a new optimizer for each client; the short rounds of W2 and H2 go in turn by
tens. The first rounds are left out; the table gives medians and the range of the pairs' ratios. Each row is a separate
process, with the peak of its resident memory (of several processes: their sum). With ``--bare`` the same round runs a
third time, as bare batched products without any framework (W1, W2, W7, H1, H2, M1), the limit of what stacks can reach.
With ``--one-process`` the loops go in turn in this process, so that none finds its caches used by another process.

    python benchmarks/workloads.py [--short] [--workloads W1 W2] [--executors sequential vectorized] [--devices 1 2]
        [--bare] [--one-process] [--clock processor]

W1 784-200-200-10 perceptron, W2 logistic regression, W3 32-64 convolutions on 3x32x32, W4 character LSTM, W5 the last
block of a MobileNetV2 from cached features under RADFed, W6 the perceptron of W1 under FedDyn, W7 the paper's Covertype
round, H1 and H2 a perceptron and a logistic regression on clients of log-normal sizes, M1 the perceptron of W1 with a
metric object, D1 and N1 user-defined perceptrons on such clients: dropout with Adam, layer normalisation with AdamW,
P1 the benchmark of pfl-research on CIFAR-10 (50 of 1,000 users of 50 samples, two convolutions and dropout), B1 that of
BlazeFL (all of 100 clients of 500 samples, five epochs, batches of 50, convolutions of 6 and 16 channels).
Data are random. ``--clock processor`` counts the time that the training thread has the processor, for
machines on which others work; it is for one process and one thread.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from federations import BLOCKS, ROUNDS, WORKLOADS, ByHand, make_clients
from plain_loop import CLOCKS, LoopProcess, PlainLoop, make_loop, start_loop
from products import SERVED
from rows import ask, tell

#: Of the best of three pairs in the short form: about three times what a quiet machine shows, so noise does not fail.
LIMITS = {"W1 sequential": 3.0, "W1 vectorized": 1.6, "W2 sequential": 3.5, "W2 vectorized": 0.7}


def one_row(options: argparse.Namespace) -> None:
    """Measure one row in this process and print it as JSON."""
    name, executor = options.one[:2]
    devices = int(options.one[2])
    clock = CLOCKS[options.clock]
    block = BLOCKS.get(name, 1)
    # The first round is left out.
    rounds = int(options.one[3]) * block + 1
    work = WORKLOADS[name]
    clients = make_clients(work)
    if executor == "plain":
        loop = PlainLoop(name, clients, clock)
        seconds = [loop.round() for _ in range(rounds)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        tell(
            {
                "rounds": seconds,
                "beside": [[each] for each in seconds],
                "accuracy": loop.accuracy(),
                "peak_gb": peak,
            }
        )
        return
    # This imports Lightning, which must not count in the memory of the plain loop.
    import fits

    kinds = ["plain"]
    if options.bare and name in SERVED:
        kinds.append("bare")
    beside: list[ByHand | LoopProcess] = []
    for kind in kinds:
        if options.one_process:
            beside.append(make_loop(name, kind, clock))
        else:
            beside.append(start_loop(name, kind, options.clock))
    fits.fit(
        name,
        work,
        clients,
        executor,
        tell,
        {"clock": clock, "beside": beside, "block": block},
        fits.first_samples(clients, 10),
        max_epochs=rounds,
        accelerator="cpu",
        devices=devices,
        strategy="ddp_fork" if devices > 1 else "auto",
        enable_progress_bar=options.progress_bar,
        check_val_every_n_epoch=rounds,
    )


def measure(name: str, executor: str, devices: int, rounds: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """Measure one row in another process."""
    arguments = ["--one", name, executor, str(devices), str(rounds), "--clock", options.clock]
    if options.progress_bar:
        arguments.append("--progress-bar")
    if options.bare:
        arguments.append("--bare")
    if options.one_process:
        arguments.append("--one-process")
    return ask(__file__, arguments, f"{name} {executor}")


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
    options = parser.parse_args()
    if options.one:
        one_row(options)
        return
    if options.short:
        options.workloads = ["W1", "W2"]
        options.executors = ["sequential", "vectorized"]
        options.devices = [1]
    is_of_one_process = options.clock == "processor" or options.one_process
    if is_of_one_process and options.devices != [1]:
        parser.error("--clock processor and --one-process are of one process: give --devices 1")
    best = print_table(options)
    if options.short:
        slow = [f"{row} (limit {limit})" for row, limit in LIMITS.items() if best.get(row, math.inf) > limit]
        if slow:
            sys.exit(f"Failed, or slower than its limit: {', '.join(slow)}")


def print_table(options: argparse.Namespace) -> dict[str, float]:
    """Print the table and return the smallest ratio of each row's pairs."""
    header = f"{'':4}{'executor':12}{'devices':>8}{'s a round':>11}{'plain':>9}{'ratio':>7}{'range':>15}"
    if options.bare:
        header += f"{'bare':>9}{'ratio':>7}{'range':>15}"
    print(f"{header}{'GB':>7}{'acc':>7}")
    best = {}
    for name in options.workloads:
        rounds = 3 if options.short else ROUNDS[name]
        rows = []
        if not options.short:
            rows.append(("plain", 1))
        for devices in options.devices:
            rows.extend((executor, devices) for executor in options.executors)
        for executor, devices in rows:
            row = measure(name, executor, devices, rounds, options)
            if row is None:
                continue
            block = BLOCKS.get(name, 1)
            ours = by_block(row["rounds"], block)
            others = [by_block(column, block) for column in zip(*row["beside"], strict=True)]
            best[f"{name} {executor}"] = min(a / b for a, b in zip(ours, others[0], strict=True))
            line = f"{name:4}{executor:12}{devices:8d}{statistics.median(ours):11.4f}"
            for other in others:
                line += beside_figures(ours, other)
            if options.bare and len(others) == 1:
                # Bare products do not serve this workload.
                line += " " * 31
            line += f"{row['peak_gb']:7.2f}{row['accuracy']:7.3f} {row.get('used', '')}"
            print(line, flush=True)
    return best


def by_block(rounds: Sequence[float], block: int) -> list[float]:
    """Return the mean of each block's rounds, without the first round."""
    return [statistics.mean(rounds[start : start + block]) for start in range(1, len(rounds), block)]


def beside_figures(ours: Sequence[float], other: Sequence[float]) -> str:
    """Return the median of the seconds beside ours, and of the pairs' ratios, with their range."""
    ratios = sorted(a / b for a, b in zip(ours, other, strict=True))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    return f"{statistics.median(other):9.4f}{statistics.median(ratios):7.2f}{spread:>15}"


if __name__ == "__main__":
    main()
