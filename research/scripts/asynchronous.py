"""What the virtual clock costs, without any training: time of an arrival, and memory of clients under way.

    python research/scripts/asynchronous.py time --clients 100000
    python research/scripts/asynchronous.py memory --clients 10000 --parameters 200000 --buffer_size 100

Every client returns the model that it received. ``time`` runs rounds of 1,000 arrivals of a model of one parameter,
so that what is measured is the heap, the books and the server's arithmetic on next to nothing; ``memory`` lets
ten arrivals a client go by with a large model, and names what is held.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fl_lightning import FedAsync, FedBuff
from fl_lightning.parts import Algorithm
from fl_lightning.parts.clock import VirtualClock
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Layout
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.round import Round
from fl_lightning.parts.run import Run
from fl_lightning.parts.schedules.asynchronous import Asynchronous

ARRIVALS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "memory"))
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, help="most clients at once; all unless given")
    parser.add_argument("--parameters", type=int, default=1)
    parser.add_argument("--buffer_size", type=int, default=1, help="1 is FedAsync")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of 1,000 arrivals")
    args = parser.parse_args()
    torch.set_num_threads(1)
    clock = VirtualClock(lambda n, rng: rng.lognormal(0.0, 0.5, n) * 100)
    shared = {"clock": clock, "concurrency": args.concurrency}
    if args.buffer_size == 1:
        algorithm = FedAsync(ARRIVALS, **shared).algorithm
    else:
        algorithm = FedBuff(args.buffer_size, ARRIVALS, **shared).algorithm
    sizes = np.full(args.clients, 10)
    model = torch.zeros(args.parameters)
    began = time.perf_counter()
    federation = Federation(sizes=sizes, model=model, layout=Layout.of_parameters(args.parameters))
    algorithm.run = Run.begin(algorithm, federation)
    print(f"{args.clients:,} clients begin: {time.perf_counter() - began:.2f} s")
    before = peak()
    rounds = []
    for round_index in range(args.rounds):
        began = time.perf_counter()
        one_round(algorithm, round_index)
        rounds.append((time.perf_counter() - began) / ARRIVALS * 1e6)
    later = rounds[1:] or rounds
    print(f"an arrival: {statistics.median(later):.1f} us (rounds from {min(later):.1f} to {max(later):.1f})")
    schedule = algorithm.schedule
    assert isinstance(schedule, Asynchronous)
    flights = schedule.clients.flights.values()
    results = len(schedule.results)
    models = len({id(flight.model) for flight in flights})
    megabytes = (models + results) * args.parameters * 4 / 1e6
    print(f"under way: {len(flights):,}; models held: {models:,}, results ahead: {results:,}")
    print(f"that is {megabytes:,.0f} MB; the process grew by {peak() - before:,.0f} MB")


def one_round(algorithm: Algorithm, round_index: int) -> None:
    """Let a round's results arrive."""

    def train(tasks: Sequence[Task]) -> Iterator[ClientResult]:
        for task in tasks:
            received = algorithm.received(task)
            yield ClientResult(task, received, received.clone(), 1)

    run = algorithm.run
    run.round = Round(run, round_index, full_work=1)
    run.round.draw()
    run.round.play(train)
    run.end_round(run.round.published)


def peak() -> float:
    """Return the process's largest size so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    main()
