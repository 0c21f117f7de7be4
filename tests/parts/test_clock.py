"""Virtual time in ticks, by hand: durations, windows, draws by a seed of the clock's own."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.parts import Federation, Layout, VirtualClock

PRIMES = {"speeds": [999983, 999979, 999961]}


def begun(
    clock: VirtualClock, clients: int = 2, *, seed: int = 0, together: bool = False, **links: Any
) -> VirtualClock:
    """Return a clock of a fit, in which a message has 10 bits and its answer 6."""
    sizes, model = np.arange(1, clients + 1), torch.zeros(1)
    bits = {"message_bits": lambda: [(10, 6)] * clients, "local_work": lambda kind: sizes * (1 + (kind == "steps"))}
    clock.setup(Federation(sizes, model, Layout.of_parameters(1), seed, **bits), together=together)
    return clock


def test_durations_and_windows_are_whole_ticks() -> None:
    # 3.5 and 1.5 units, and times of quarters
    windows = {1: [(4, math.inf), (0.25, 2)]}
    clock = begun(VirtualClock([1, 2], work=3, delay=[0.5, 0], online=windows))
    assert (clock.ticks_per_unit, clock.time(6)) == (4, 1.5)
    assert [clock.duration(0, 7), clock.duration(1, 7), clock.duration(0, 7, Fraction(1, 2))] == [14, 6, 7]
    # At 8 ticks the window from 1 to 8 is over, and the next one begins at 16.
    ticks = (0, 1, 7, 8, 16, 20)
    assert [clock.next_online(1, tick) for tick in ticks] == [1, 1, 7, 16, 16, 20]
    assert [clock.next_online(0, tick) for tick in ticks] == list(ticks)
    assert [clock.leaves_at(1, tick) for tick in (1, 7, 16)] == [8, 8, 2**200]
    assert clock.leaves_at(0, 5) == 2**200
    assert begun(VirtualClock(online={0: [(0, 1)]})).next_online(0, 1) is None


@pytest.mark.parametrize(
    ("options", "ticks", "durations"),
    [
        ({"speeds": 3, "work": 1}, 3, [1, 1]),
        ({"speeds": 3, "work": 1, "dropout": 0.5}, 3, [1, 1]),
        # Messages of 10 bits and answers of 6: 2 + 3 units, and 1 + 1; then 2.5 + 1.5.
        ({"speeds": 1, "work": 1, "bandwidth": [5, 10], "upload_bandwidth": [2, 6]}, 1, [6, 3]),
        ({"speeds": 1, "work": 1, "bandwidth": 4}, 1, [5, 5]),
        ({"speeds": 0.5, "work": "samples"}, 1, [2, 4]),
        ({"speeds": 0.5, "work": "steps"}, 1, [4, 8]),
        ({"speeds": lambda number, rng: [number, 2 * number], "work": 8}, 1, [4, 2]),
        # Three primes have no tick of 1e-12 together: a billionth of the shortest, of 1e-6, rounded down to a power.
        ({"speeds": [999983, 999979], "work": 1}, 999983 * 999979, [999979, 999983]),
        # Windows may begin at 0, and where tasks are long, a tick is a whole unit.
        (PRIMES | {"work": 1, "online": {0: [(0, 9)]}}, 10**15, [1000017000, 1000021000, 1000039002]),
        (PRIMES | {"work": 10**17}, 1, [100001700029, 100002100044, 100003900152]),
    ],
)
def test_ticks_by_hand(options: dict[str, Any], ticks: int, durations: list[int]) -> None:
    clients = len(durations)
    clock = begun(VirtualClock(**options), clients)
    assert clock.ticks_per_unit == ticks
    assert [clock.duration(client, 0) for client in range(clients)] == durations
    fine = begun(VirtualClock(**options), clients, together=True).ticks_per_unit
    assert fine % ticks == 0
    assert 10**9 <= fine < 10**9 + ticks or fine == ticks
    assert clock.durations_together([(client, 0, Fraction(1)) for client in range(clients)]) == durations


def test_chance_is_of_the_clock_s_seed_or_the_run_s() -> None:
    def drawn(seed: int | None, of_run: int) -> list[Any]:
        speeds = {"speeds": lambda number, rng: rng.integers(1, 10**6, number)}
        clock = begun(VirtualClock(**speeds, work=1, jitter=0.5, dropout=0.5, seed=seed), seed=of_run)
        tasks = [(client, number) for client in range(2) for number in range(4)]
        return [[clock.time(clock.duration(*task)) for task in tasks], [clock.is_lost(*task) for task in tasks]]

    assert drawn(3, 0) == drawn(3, 1) == drawn(None, 3) != drawn(None, 0)
    assert drawn(0, 3) == drawn(None, 0)
    times, lost = drawn(3, 0)
    # Chance is of the client and of the task.
    assert len({round(time, 4) for time in times}) == len(times)
    assert lost[:4] != lost[4:]
    assert all(0 < time < 0.501 for time in times)
    assert set(lost) == {False, True}
