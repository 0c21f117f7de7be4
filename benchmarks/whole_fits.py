"""Whole fits beside a plain loop: what short fits take, with all that a fit begins with.

    OMP_NUM_THREADS=1 python benchmarks/whole_fits.py [--workloads W1 W2] [--steps 1500 3000] [--executors auto]

Each row is a process of its own, which makes the same fit twice; after each fit a plain loop trains the same clients
in the same rounds. The table has the seconds of the processor that each took, and their ratios. A fit's seconds
begin before its data module and its module are made, and end after ``Trainer.fit`` has returned; imports are left out.
The workloads are those of ``workloads.py``.
"""

from __future__ import annotations

import argparse
import statistics

import fits
from federations import WORKLOADS, Workload, make_clients
from plain_loop import CLOCKS, make_loop
from rows import ask, tell

_STEPS = (1500, 3000, 6000, 24000)


def num_rounds(work: Workload, steps: int) -> int:
    """Return in how many rounds all clients together make about so many optimizer steps."""
    batches = [-(-size // work.batch_size) for size in work.sizes()]
    per_round = work.per_round * work.epochs * statistics.mean(batches)
    return max(1, round(steps / per_round))


def one_row(name: str, executor: str, rounds: int) -> None:
    """Make a fit twice in this process, and print the seconds of both and of the plain loop as JSON."""
    clock = CLOCKS["processor"]
    work = WORKLOADS[name]
    clients = make_clients(work)
    seconds = []
    beside = []
    used: list[str] = []
    for _ in range(2):
        begun = clock()
        drawn = fits.fit(
            name,
            work,
            clients,
            executor,
            lambda figures: used.append(figures["used"]),
            {"clock": clock},
            fits.first_samples(clients, 10),
            max_epochs=rounds,
            accelerator="cpu",
            devices=1,
            check_val_every_n_epoch=rounds,
        )
        seconds.append(clock() - begun)
        loop = make_loop(name, "plain", clock)
        beside.append(sum(loop.round(of_round) for of_round in drawn))
    tell({"seconds": seconds, "beside": beside, "used": used[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2", "W7", "H3"], choices=list(WORKLOADS))
    parser.add_argument("--steps", nargs="+", type=int, default=list(_STEPS), help="optimizer steps of all clients")
    parser.add_argument("--executors", nargs="+", default=["auto"], help="how clients are trained")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, executor, rounds = options.one
        one_row(name, executor, int(rounds))
        return
    header = f"{'':4}{'executor':12}{'steps':>7}{'rounds':>8}{'plain, s':>10}"
    print(f"{header}{'first, s':>10}{'ratio':>7}{'second, s':>11}{'ratio':>7}")
    for name in options.workloads:
        for steps in options.steps:
            for executor in options.executors:
                print_row(name, executor, steps)


def print_row(name: str, executor: str, steps: int) -> None:
    """Measure a row in another process, and print it."""
    rounds = num_rounds(WORKLOADS[name], steps)
    row = ask(__file__, ["--one", name, executor, str(rounds)], f"{name} {executor}")
    if row is None:
        return
    plain = statistics.mean(row["beside"])
    first, second = row["seconds"]
    line = f"{name:4}{executor:12}{steps:7}{rounds:8}{plain:10.2f}"
    line += f"{first:10.2f}{first / plain:7.2f}{second:11.2f}{second / plain:7.2f}"
    print(line, row["used"], flush=True)


if __name__ == "__main__":
    main()
