"""Virtual time: how long clients take, and when they are available."""

from __future__ import annotations

import csv
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.links import Lines, SharedLink
from fl_lightning.seeding import Stream, numpy_generator
from fl_lightning.settings import Natural, NotNegative, Positive, check, check_fields, is_number
from fl_lightning.signatures import ShowsArguments

Number = int | float | Fraction
Speeds = Positive | Sequence[Positive] | Callable[[int, np.random.Generator], Any]
Windows = Mapping[int, Sequence[tuple[Number, Number]]]

#: Most ticks in a unit of time; beyond it durations are rounded to a billionth of the shortest.
_FINEST = 10**12
#: Fewest ticks in a unit of time where durations are random, of a part of the work, or depend on who else sends.
_FINE = 10**9
_FOREVER = 2**200


@dataclass(eq=False, repr=False)
class VirtualClock(ShowsArguments):
    """How long each client's tasks take, in units of virtual time.

    A task takes ``work / speed + delay``, the time of its messages if there is a ``bandwidth``, and a random part up to
    ``jitter``. Times are whole numbers of ticks whose
    length divides every duration, so that times which are equal compare equal: with speeds 100 and 50 the second
    client's first task ends with the first one's second. Where no such tick is coarser than 1e-12, as with hundreds
    of random speeds, durations are rounded to a billionth of the shortest one.

    Args:
        speeds: Work units per unit of virtual time: one number for each client, one for all, or a function of the
            number of clients and a generator that draws them. Greater than 0.
        work: Units of a task: a number, ``"samples"`` for the samples that local training goes through, or ``"steps"``
            for its batches.
        delay: Time that a model travels, both ways together: for all clients, or one number each.
        bandwidth: Bits that a client receives per unit of virtual time: for all clients, or one number each; greater
            than 0. A message has the bits that ``Communication`` counts, as compression leaves them, without single
            numbers, and with all buffers that travel. ``None``: no limit of its own.
        upload_bandwidth: The same of the way up; as ``bandwidth`` if ``None``.
        shared_links: Links that the messages of several clients share, for ``VirtualTime``: clients that begin a round
            together. Asynchronous schedules, and samplers that choose clients by their time, raise an error.
        jitter: Largest random addition to a task's time, drawn uniformly for each task.
        dropout: Chance that a task's result is lost. Its client then gets the newest model.
        online: When clients are available: (from, until) in virtual time, by client. The others always are. A client
            gets the newest model when it comes, and loses unfinished work when it goes.
        seed: Seed of drawn speeds, jitter and drop-out; the run's seed if ``None``.

    Raises:
        ValueError: If an argument is out of its range, or ``upload_bandwidth`` is given alone; when the fit begins, if
            there is not one speed for each client, or ``online`` is of a client that does not exist.
    """

    speeds: Speeds = 100
    _: KW_ONLY
    work: Positive | Literal["samples", "steps"] = 100
    delay: NotNegative | Sequence[NotNegative] = 0
    bandwidth: Positive | Sequence[Positive] | None = None
    upload_bandwidth: Positive | Sequence[Positive] | None = None
    shared_links: Sequence[SharedLink] = ()
    jitter: NotNegative = 0.0
    dropout: Annotated[float, "[0, 1)"] = 0.0
    online: Windows | None = None
    seed: Natural | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.upload_bandwidth is not None and self.bandwidth is None:
            raise ValueError(
                f"`upload_bandwidth` must be given with `bandwidth`, got {self.upload_bandwidth!r} alone. Give both."
            )
        check("`online`", list(self.online or ()), Sequence[Natural])
        for client, given in (self.online or {}).items():
            windows = sorted(check("`online`", given, Sequence[Sequence[float]]))
            are_apart = all(before[1] <= after[0] for before, after in pairwise(windows))
            are_windows = all(0 <= begin < end for begin, end in windows)
            if not windows or not are_apart or not are_windows:
                raise ValueError(
                    "`online` must give each client windows (from, until) that do not overlap, 0 <= from < until; got "
                    f"{windows} for client {client}. Leave out clients that are always available."
                )
        self.ticks_per_unit = 1

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> VirtualClock:
        """Return the clock of a trace: a CSV file with the columns ``client`` and ``speed``.

        Further columns: ``delay``; ``online_from`` and ``online_until``, where a client has a line for each window.

        Args:
            path: The file; clients are numbered from 0 and all have a line.
            **options: Further arguments of the class.

        Raises:
            KeyError: If a column is missing.
            ValueError: If clients or numbers are wrong.
        """
        speeds: dict[int, Fraction] = {}
        delays: dict[int, Fraction] = {}
        online: dict[int, list[Any]] = {}
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                client = int(row["client"])
                speeds[client] = Fraction(row["speed"])
                delays[client] = Fraction(row.get("delay") or 0)
                if row.get("online_from"):
                    begin = Fraction(row["online_from"])
                    end = math.inf if row["online_until"] == "inf" else Fraction(row["online_until"])
                    online.setdefault(client, []).append((begin, end))
        clients = range(len(speeds))
        if set(speeds) != set(clients):
            raise ValueError(f"{path} must have a line for each client from 0 to K-1, got lines for {sorted(speeds)}.")
        given = {
            "speeds": [speeds[client] for client in clients],
            "delay": [delays[client] for client in clients],
            "online": online,
        }
        return cls(**{**given, **options})

    # ---- a fit ----

    def setup(self, federation: Federation, *, together: bool = False) -> None:
        """Learn the federation's size and work, and draw the clients' random properties.

        Args:
            federation: The clients, and the bits of their messages.
            together: Whether clients begin together, and may do a part of the work: :meth:`durations_together`.

        Raises:
            ValueError: If there is not one speed (or delay) for each client, or clients that do not begin together
                share links.
        """
        if self.shared_links and not together:
            raise ValueError(
                "`shared_links` needs clients that begin a round together, as those of a synchronous method with "
                f"`VirtualTime` do, got {self.shared_links}. Asynchronous methods, and samplers that choose clients by "
                "their time, need times that do not depend on who else sends: give them a clock without."
            )
        number = federation.num_clients
        self._seed = federation.seed if self.seed is None else self.seed
        speeds = self.speeds
        work = self.work
        online = self.online or {}
        if callable(speeds):
            drawn = speeds(number, numpy_generator(self._seed, Stream.CLOCK))
            speeds = check("`speeds`", drawn, Sequence[Positive])
        if max(online, default=0) >= number:
            raise ValueError(f"`online` must name training clients, 0 to {number - 1}, got {max(online)}.")
        if isinstance(work, str):
            federation.check_sizes_stay(f"`work={work!r}` of a clock", "Give `work` as a number.")
            works = [_exact(units) for units in federation.local_work(work)]
        else:
            works = [_exact(work)] * number
        paces = _each("speeds", speeds, number)
        delays = _each("delay", self.delay, number)
        #: How long each client takes without its messages, and these on its own line, both ways together.
        self._local = [units / pace + wait for units, pace, wait in zip(works, paces, delays, strict=True)]
        self._messages = self._set_up_messages(federation)
        exact = [local + messages for local, messages in zip(self._local, self._messages, strict=True)]

        # Durations, and times at which clients come and go, are whole numbers of ticks.
        times = list(exact)
        for windows in online.values():
            for window in windows:
                times += [_exact(edge) for edge in window if edge != math.inf]
        self.ticks_per_unit = _common_ticks(times, bool(self.jitter or together))
        self._durations = [round(duration * self.ticks_per_unit) for duration in exact]
        self._windows: dict[int, list[tuple[int, int]]] = {}
        for client, windows in online.items():
            self._windows[client] = sorted((self._ticks(begin), self._ticks(end)) for begin, end in windows)

    def _set_up_messages(self, federation: Federation) -> list[Fraction]:
        """Learn the lines of both ways; return how long each client's messages take on its own one, both together.

        Raises:
            ValueError: If there is not one rate for each client, or a link is of clients that do not exist.
        """
        number = federation.num_clients
        if self.bandwidth is None and not self.shared_links:
            return [Fraction(0)] * number
        rates = None
        upload_rates = None
        if self.bandwidth is not None:
            upload_bandwidth = self.bandwidth if self.upload_bandwidth is None else self.upload_bandwidth
            rates = _each("bandwidth", self.bandwidth, number)
            upload_rates = _each("upload_bandwidth", upload_bandwidth, number)
        bits = federation.message_bits()
        bits_down = [to_client for to_client, _ in bits]
        bits_up = [answer for _, answer in bits]
        links = self.shared_links
        carries = np.array([link.carries(number) for link in links], bool).reshape(-1, number)
        self._down = Lines(bits_down, rates, [link.capacity for link in links], carries)
        self._up = Lines(bits_up, upload_rates, [link.capacity_up for link in links], carries)
        return [down + up for down, up in zip(self._down.times_alone, self._up.times_alone, strict=True)]

    def duration(self, client: int, number: int, share: Fraction | int = 1) -> int:
        """Return how many ticks a client's task takes.

        Args:
            client: The client.
            number: Which of the run's tasks it is; jitter depends on it.
            share: Part of the whole work; messages are whole.
        """
        ticks = self._durations[client]
        if share != 1:
            exact = self._local[client] * share + self._messages[client]
            ticks = round(exact * self.ticks_per_unit)
        return ticks + self._jitter(client, number)

    def durations_together(self, tasks: Sequence[tuple[int, int, Fraction]]) -> list[int]:
        """Return how many ticks tasks take that begin together: their messages share links.

        A client's answer begins when its work, delay and jitter are over.

        Args:
            tasks: The arguments of :meth:`duration` for each.
        """
        if not self.shared_links:
            return [self.duration(client, number, share) for client, number, share in tasks]
        clients = np.array([client for client, _, _ in tasks], int)
        local = np.zeros(len(tasks))
        for place, (client, number, share) in enumerate(tasks):
            local[place] = self._local[client] * share + self._jitter(client, number) / self.ticks_per_unit
        received = self._down.arrivals(clients, np.zeros(len(tasks)))
        answered = self._up.arrivals(clients, received + local)
        return [round(time * self.ticks_per_unit) for time in answered.tolist()]

    def _jitter(self, client: int, number: int) -> int:
        """Return the ticks that a task takes by chance."""
        if not self.jitter:
            return 0
        chance = numpy_generator(self._seed, Stream.CLOCK, 1, client, number).random()
        return round(chance * self.jitter * self.ticks_per_unit)

    def is_lost(self, client: int, number: int) -> bool:
        """Return whether the result of a task is lost."""
        if not self.dropout:
            return False
        chance = numpy_generator(self._seed, Stream.CLOCK, 2, client, number).random()
        return bool(chance < self.dropout)

    def next_online(self, client: int, tick: int) -> int | None:
        """Return the first tick from ``tick`` on at which the client is there; ``None`` if it does not come back."""
        window = self._window(client, tick)
        if window is None:
            return None
        begin, _ = window
        return max(tick, begin)

    def leaves_at(self, client: int, tick: int) -> int:
        """Return the tick at which the client, which is there, goes; one that never comes if it stays."""
        window = self._window(client, tick)
        return _FOREVER if window is None else window[1]

    def _window(self, client: int, tick: int) -> tuple[int, int] | None:
        """Return the first of a client's windows that ends after a tick."""
        always = [(0, _FOREVER)]
        windows = self._windows.get(client, always)
        place = bisect_right(windows, tick, key=lambda window: window[1])
        return windows[place] if place < len(windows) else None

    def time(self, ticks: int) -> float:
        """Return ticks in units of virtual time."""
        return ticks / self.ticks_per_unit

    def _ticks(self, time: Number) -> int:
        if time == math.inf:
            return _FOREVER
        return round(_exact(time) * self.ticks_per_unit)


def _each(name: str, values: Any, number: int) -> list[Fraction]:
    """Return one number for each client."""
    if is_number(values):
        values = [values] * number
    if len(values) != number:
        raise ValueError(f"`{name}` must be one number, or one for each of the {number} clients, got {len(values)}.")
    return [_exact(value) for value in values]


def _exact(value: Any) -> Fraction:
    """Return a number as it is written: 0.1 is a tenth."""
    return Fraction(str(value))


def _common_ticks(durations: Sequence[Fraction], others: bool) -> int:
    """Return how many ticks make a unit of time, so that each duration is a whole number of them if it can be.

    Args:
        durations: Durations that are known.
        others: Whether there are others, which are random, of a part of the work, or depend on who else sends.
    """
    ticks = 1
    for duration in durations:
        ticks = math.lcm(ticks, duration.denominator)
        if ticks > _FINEST:
            # A tick is about a billionth of the shortest duration.
            shortest = min(duration for duration in durations if duration > 0)
            digits = 9 - math.floor(math.log10(shortest))
            return int(10 ** max(0, digits))
    if not others:
        return ticks
    # The smallest multiple that is fine enough for those.
    return ticks * math.ceil(Fraction(_FINE, ticks))
