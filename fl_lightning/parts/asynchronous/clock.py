"""Virtual time: how long clients take, and when they are available."""

from __future__ import annotations

import csv
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor

from fl_lightning.checks import (
    Natural,
    NotNegative,
    PathLike,
    Positive,
    check,
    is_number,
    is_sequence,
    plain,
    represent,
    short,
    to_array,
)
from fl_lightning.parts.federation import Federation
from fl_lightning.seeding import Stream, numpy_generator

Number = int | float | Fraction
Speeds = Number | Sequence[Number] | np.ndarray | Callable[[int, np.random.Generator], Sequence[Number] | np.ndarray]
Windows = Mapping[int, Sequence[tuple[Number, Number]]]

_FINEST = 10**12  # ticks in a unit of time; beyond it durations are rounded to a billionth of the shortest
_RANDOM = 10**9  # ticks in a unit of time where durations have a random part


class VirtualClock:
    """How long each client's tasks take, in units of virtual time.

    A task takes ``work / speed + delay``, and a random part up to ``jitter``. Times are whole numbers of ticks whose
    length divides every duration, so that times which are equal compare equal: with speeds 100 and 50 the second
    client's first task ends with the first one's second. Where no such tick is coarser than 1e-12, as with hundreds
    of random speeds, durations are rounded to a billionth of the shortest one.

    Args:
        speeds: Work units per unit of virtual time: one number for each client, one for all, or a function of the
            number of clients and a generator that draws them. Greater than 0.
        work: Units of a task: a number, ``"samples"`` for the samples that local training goes through, or ``"steps"``
            for its batches.
        delay: Time that a model travels, both ways together: for all clients, or one number each.
        jitter: Largest random addition to a task's time, drawn uniformly for each task.
        dropout: Chance that a task's result is lost. Its client then gets the newest model.
        online: When clients are available: (from, until) in virtual time, by client. The others always are. A client
            gets the newest model when it comes, and loses unfinished work when it goes.
        seed: Seed of drawn speeds, jitter and drop-out; the run's seed if ``None``.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if there is not one speed for each client,
            or ``online`` is of a client that does not exist.
    """

    def __init__(
        self,
        speeds: Speeds = 100,
        *,
        work: Number | Literal["samples", "steps"] = 100,
        delay: Number | Sequence[Number] | np.ndarray = 0,
        jitter: float = 0.0,
        dropout: float = 0.0,
        online: Windows | None = None,
        seed: int | None = None,
    ) -> None:
        speeds, delay = _of_numpy("speeds", speeds), _of_numpy("delay", delay)
        if not callable(speeds):
            _check_speeds(speeds)
        if isinstance(work, str):
            check("`work`", work, Literal["samples", "steps"])
        else:
            check("`work`", work, Positive)  # type: ignore[arg-type]
        for each in _listed("delay", delay):
            check("`delay`", each, NotNegative)  # type: ignore[arg-type]
        check("`jitter`", jitter, NotNegative)
        check("`dropout`", dropout, Annotated[float, "[0, 1)"])
        if seed is not None:
            check("`seed`", seed, Natural)
        self.speeds, self.work, self.delay = speeds, plain(work), plain(delay)
        self.jitter, self.dropout = plain(jitter), plain(dropout)
        self.online = _check_online({} if online is None else online)
        self.seed = seed
        self.ticks_per_unit = 1
        self._durations: list[int] = []
        self._windows: dict[int, tuple[list[int], list[int]]] = {}
        self._seed = 0

    def __repr__(self) -> str:
        return represent(self, leave_out=() if self.online else ("online",))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> VirtualClock:
        """Return the clock of a trace: a CSV file with the columns ``client`` and ``speed``.

        Further columns: ``delay``; ``online_from`` and ``online_until``, where a client has a line for each window.

        Args:
            path: The file; clients are numbered from 0 and all have a line.
            **options: Further arguments of the class.

        Raises:
            TypeError: If ``path`` is no path.
            FileNotFoundError: If there is no such file.
            ValueError: If a column is missing, or clients or numbers are wrong.
        """
        check("`path`", path, PathLike)
        if not Path(path).is_file():
            raise FileNotFoundError(f"`path` must be a CSV file with the columns client and speed; there is no {path}.")
        speeds: dict[int, Number] = {}
        delays: dict[int, Number] = {}
        online: dict[int, list[tuple[Number, Number]]] = {}
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = set(reader.fieldnames or ())
            missing = {"client", "speed", *(["online_until"] if "online_from" in names else [])} - names
            if missing:
                raise ValueError(
                    f"{path} has no column {sorted(missing)}; its first line must name client and speed, and "
                    "online_until beside online_from."
                )
            for row in reader:
                try:
                    client = int(row["client"])
                    speeds[client], delays[client] = Fraction(row["speed"]), Fraction(row.get("delay") or 0)
                    if row.get("online_from"):
                        until = row["online_until"]
                        window = Fraction(row["online_from"]), math.inf if until == "inf" else Fraction(until)
                        online.setdefault(client, []).append(window)
                except (ArithmeticError, TypeError, ValueError) as error:
                    raise ValueError(f"{path}, line {reader.line_num}: {row} is no client's line ({error}).") from error
        if sorted(speeds) != list(range(len(speeds))):
            known = ", ".join(map(str, sorted(speeds)[:8]))
            raise ValueError(
                f"{path} must have a line for each client from 0 to K-1, got lines for {known or 'no client'}."
            )
        given = {"speeds": [speeds[k] for k in sorted(speeds)], "delay": [delays[k] for k in sorted(speeds)]}
        return cls(**{**given, "online": online, **options})

    # ---- a fit ----

    def setup(self, federation: Federation) -> None:
        """Learn the federation's size and work, and draw the clients' random properties.

        Raises:
            ValueError: If there is not one speed (or delay) for each client.
        """
        number = federation.num_clients
        self._seed = federation.seed if self.seed is None else self.seed
        speeds = self.speeds
        if callable(speeds):
            speeds = _of_numpy("speeds", speeds(number, numpy_generator(self._seed, Stream.CLOCK)))
            _check_speeds(speeds)
        if absent := [client for client in self.online if client >= number]:
            raise ValueError(
                f"`online` must name training clients, 0 to {number - 1}, got {absent[0]}. Clients are numbered by "
                "position."
            )
        paces, delays = _one_each("speeds", speeds, number), _one_each("delay", self.delay, number)
        work = federation.local_work(self.work) if isinstance(self.work, str) else self.work
        works = _one_each("work", work, number)
        exact = [units / pace + wait for units, pace, wait in zip(works, paces, delays, strict=True)]
        edges = [_exact(edge) for windows in self.online.values() for window in windows for edge in window]
        self.ticks_per_unit = _common_ticks([*exact, *(edge for edge in edges if edge != math.inf)], bool(self.jitter))
        self._durations = [max(1, round(duration * self.ticks_per_unit)) for duration in exact]
        self._windows = {
            client: (
                [self._ticks(begin) for begin, _ in windows],
                [self._ticks(end) for _, end in windows],
            )
            for client, windows in self.online.items()
        }

    def duration(self, client: int, number: int, share: Fraction | int = 1) -> int:
        """Return how many ticks a client's task takes.

        Args:
            client: The client.
            number: Which of the run's tasks it is; jitter depends on it.
            share: Part of the whole work.
        """
        ticks = self._durations[client] if share == 1 else max(1, round(self._durations[client] * share))
        if self.jitter:
            chance = numpy_generator(self._seed, Stream.CLOCK, 1, client, number).random()
            ticks += round(chance * self.jitter * self.ticks_per_unit)
        return ticks

    def is_lost(self, client: int, number: int) -> bool:
        """Return whether the result of a task is lost."""
        if not self.dropout:
            return False
        return bool(numpy_generator(self._seed, Stream.CLOCK, 2, client, number).random() < self.dropout)

    def next_online(self, client: int, tick: int) -> int | None:
        """Return the first tick from ``tick`` on at which the client is there; ``None`` if it does not come back."""
        if client not in self._windows:
            return tick
        begins, ends = self._windows[client]
        place = bisect_right(ends, tick)  # the first window that ends later
        return None if place == len(ends) else max(tick, begins[place])

    def leaves_at(self, client: int, tick: int) -> int | None:
        """Return the tick at which the client, which is there, goes; ``None`` if it stays."""
        if client not in self._windows:
            return None
        ends = self._windows[client][1]
        return ends[bisect_right(ends, tick)]

    def time(self, ticks: int) -> float:
        """Return ticks in units of virtual time."""
        return ticks / self.ticks_per_unit

    def _ticks(self, time: Number) -> int:
        return _FOREVER if time == math.inf else round(_exact(time) * self.ticks_per_unit)


_FOREVER = 2**200


def _of_numpy(name: str, values: Any) -> Any:
    """Return a tensor of numbers as an array, any other value as it is."""
    return to_array(name, values) if isinstance(values, Tensor) and values.ndim else values


def _listed(name: str, values: Any) -> Sequence[Number]:
    """Return one number, or one for each client, as a list."""
    if is_number(values):
        return [values]
    if not is_sequence(values) or not len(values):
        raise TypeError(f"`{name}` must be a number, or a sequence with one for each client, got {short(values)}.")
    return list(values)


def _one_each(name: str, values: Any, number: int) -> list[Fraction]:
    if is_number(values):
        return [_exact(values)] * number
    if len(values) != number:
        raise ValueError(
            f"`{name}` must have one number for each of the {number} training clients, got {len(values)}. Give "
            f"{number}, one number for all, or a function that draws them."
        )
    return [_exact(value) for value in values]


def _exact(value: Any) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth."""
    if isinstance(value, (int, np.integer)):
        return Fraction(int(value))
    if isinstance(value, Fraction):
        return value
    return Fraction(repr(float(plain(value)))) if math.isfinite(value) else value


def _check_speeds(speeds: Any) -> None:
    for client, speed in enumerate(_listed("speeds", speeds)):
        check(f"`speeds` of client {client}", speed, Positive)


def _check_online(online: Windows) -> dict[int, list[tuple[Number, Number]]]:
    check("`online`", online, Mapping)
    for client in online:
        if not isinstance(client, (int, np.integer)) or isinstance(client, bool) or client < 0:
            raise ValueError(f"`online` must be of clients, whole numbers from 0, got {short(client)}.")
    return {int(client): _check_windows(client, windows) for client, windows in online.items()}


def _check_windows(client: int, windows: Sequence[tuple[Number, Number]]) -> list[tuple[Number, Number]]:
    are_windows = is_sequence(windows) and len(windows) > 0 and all(map(_is_window, windows))
    ordered = sorted((begin, end) for begin, end in windows) if are_windows else []
    if not ordered or any(before[1] > after[0] for before, after in pairwise(ordered)):
        raise ValueError(
            f"`online` must give each client windows (from, until) that do not overlap, 0 <= from < until; got "
            f"{short(windows)} for client {client}. Leave out clients that are always available."
        )
    return ordered


def _is_window(window: Any) -> bool:
    is_pair = is_sequence(window) and len(window) == 2 and all(map(is_number, window))
    return is_pair and 0 <= window[0] < window[1]


def _common_ticks(durations: Sequence[Fraction], random: bool) -> int:
    """Return how many ticks make a unit of time, so that each duration is a whole number of them if it can be."""
    ticks = 1
    for duration in durations:
        ticks = math.lcm(ticks, duration.denominator)
        if ticks > _FINEST:
            shortest = min(duration for duration in durations if duration > 0)
            return int(10 ** max(0, 9 - math.floor(math.log10(shortest))))
    return ticks * -(-_RANDOM // ticks) if random else ticks
