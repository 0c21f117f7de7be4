"""A part or an algorithm of a user's own is tried on a tiny problem, as scikit-learn's ``check_estimator`` tries one.

Each check is a small fit that is compared with another one, to which something else has happened. A fit of six clients
and three rounds takes some hundredths of a second, so all checks take seconds.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.federated import Federated
from fl_lightning.data import FederatedDataModule
from fl_lightning.executors import Executor
from fl_lightning.notebook import as_table
from fl_lightning.parts import Aggregation, ClientSampler, Exchange, LocalObjective, Schedule, ServerOptimizer
from fl_lightning.seeding import preserved_generators
from fl_lightning.settings import Count, check
from fl_lightning.testing.fits import (
    BodyAndHead,
    Break,
    Scramble,
    Trace,
    Writes,
    content,
    different,
    distance,
    fit,
    six_clients,
)
from fl_lightning.testing.processes import on_two_processes

#: The argument of ``Federated`` for each kind of part.
_KINDS: dict[str, type] = {
    "sampler": ClientSampler,
    "schedule": Schedule,
    "objective": LocalObjective,
    "exchange": Exchange,
    "aggregation": Aggregation,
    "server": ServerOptimizer,
    "executor": Executor,
}
#: Fits that compute the same in another order agree to rounding.
_ROUNDING = 1e-10
#: A step is larger.
_MOVED = 1e-9
_CLIENTS = 4
#: Seconds in which two processes must have ended.
_PATIENCE = 120.0
#: So many places of a difference are named.
_NAMED = 3

_DECLARE = (
    "Declare what changes from round to round in `setup(federation)`, by `self.add_state(name, value)` or "
    "`self.add_client_vectors(name, initial)`, and assign new tensors."
)
_DRAW = "Draw from `self.generator(task)`, or from the generator that a method is given."
_GATHER = (
    "What is of one client belongs in `self.add_client_vectors(name, initial)`. Every other state must be the same on "
    "all processes: `self.federation.sum_over_ranks` or `gather` in `on_round_end`, which all must call together."
)


class PartCheckError(AssertionError):
    """A check of a part failed.

    Attributes:
        check: Its name.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`{name}` failed: {reason}")
        self.check = name


@dataclass(frozen=True)
class Check:
    """A check that was made, or could not be made.

    Attributes:
        name: Its name.
        meaning: What held, or why the check was not made.
        was_made: Whether it was made.
    """

    name: str
    meaning: str
    was_made: bool = True


@dataclass(frozen=True)
class PartReport:
    """The checks of a part, all of which held; ``print`` shows them as a table.

    Attributes:
        part: The part.
        checks: The checks.
        seconds: How long they took.
    """

    part: str
    checks: Sequence[Check]
    seconds: float

    def __repr__(self) -> str:
        made = [check for check in self.checks if check.was_made]
        lines = [f"{self.part}: all {len(made)} checks held, in {self.seconds:.1f} s"]
        for each in self.checks:
            state = "held" if each.was_made else "not made"
            lines.append(f"  {each.name:<14}{state:<10}{each.meaning}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for each in self.checks:
            rows.append((each.name, "held" if each.was_made else "not made", each.meaning))
        return as_table(rows, ["check", "", "meaning"])


class PartChecks:
    """The checks, each a method that raises :class:`PartCheckError` or says what held.

    Args:
        make: Returns an algorithm that has not been fitted, the same one each time.
        make_module: Returns the module, with the same weights each time.
        make_data: Returns the data.
        rounds: Rounds of a fit.
        folder: For checkpoints.
    """

    def __init__(
        self,
        make: Callable[[], AggregationCallback],
        make_module: Callable[[], L.LightningModule],
        make_data: Callable[[], FederatedDataModule],
        rounds: int,
        folder: Path,
    ) -> None:
        self.make = make
        self.make_module = make_module
        self.make_data = make_data
        self.rounds = rounds
        self.folder = folder

    @cached_property
    def whole(self) -> tuple[Trace, L.Trainer]:
        """The states of a fit to which nothing happens, and its trainer."""
        trace = Trace()
        trainer = self._fit(self.make(), self.make_module(), trace)
        return trace, trainer

    @cached_property
    def whole_content(self) -> dict[str, Any]:
        """What a checkpoint at the end of that fit holds."""
        return content(self.whole[1], self.folder)

    def trains(self) -> Check:
        """Check that a fit ends, with finite numbers."""
        trace, _ = self.whole
        last = trace.rounds[-1]
        if not all(value.isfinite().all() for value in last.values()):
            raise PartCheckError("trains", "the model has NaN or infinite values after the last round.")
        if distance(last, trace.first) < _MOVED:
            raise PartCheckError(
                "trains", f"the model has not moved in {self.rounds} rounds. Give `rounds`, if it moves later."
            )
        return Check("trains", f"{self.rounds} rounds end with finite numbers, and the model has moved")

    def assigns(self) -> Check:
        """Check that declared tensors are assigned, and none is written to."""
        writes = Writes()
        self._fit(self.make(), self.make_module(), writes)
        if writes.found:
            names = ", ".join(sorted(writes.found))
            raise PartCheckError(
                "assigns",
                f"{names}: a tensor of a round before is written to, so that a round that breaks off cannot be undone. "
                "Assign a new one, as in `self.velocity = 0.9 * self.velocity + delta`.",
            )
        return Check("assigns", "declared tensors are assigned, and none is written to")

    def draws(self) -> Check:
        """Check that the seed alone decides what is drawn."""
        trace = Trace()
        self._fit(self.make(), self.make_module(), trace)
        self._same("draws", trace.rounds[-1], "another fit with the same seed, and global generators elsewhere", _DRAW)
        return Check("draws", "the seed decides what is drawn, and not the global generators")

    def fits_again(self) -> Check:
        """Check that a second fit of the same objects begins from nothing."""
        callback = self.make()
        self._fit(callback, self.make_module())
        trace = Trace()
        self._fit(callback, self.make_module(), trace)
        self._same("fits again", trace.rounds[-1], "a second fit of the same object", _DECLARE)
        return Check("fits again", "a second fit of the same object begins from nothing")

    def resumes(self) -> Check:
        """Check that a fit that is broken off in mid-round goes on from its checkpoint, with new objects."""
        broken = Break(1, self.folder / "mid.ckpt")
        if not self._breaks_off(self.make(), self.make_module(), broken):
            return Check("resumes", "no two clients have trained after the first round", was_made=False)
        trainer = self._fit(self.make(), self.make_module(), ckpt_path=broken.path)
        places = different(content(trainer, self.folder), self.whole_content)
        self._no_places("resumes", places, "goes on from its checkpoint")
        return Check("resumes", "broken off in mid-round and resumed from its checkpoint, it ends with the same bits")

    def rolls_back(self) -> Check:
        """Check that a fit that is broken off in mid-round goes on with the same objects."""
        broken = Break(1, self.folder / "mid.ckpt")
        module = self.make_module()
        if not self._breaks_off(self.make(), module, broken):
            return Check("rolls back", "no two clients have trained after the first round", was_made=False)
        broken.trainer.fit(module, datamodule=self.make_data())
        places = different(content(broken.trainer, self.folder), self.whole_content)
        self._no_places("rolls back", places, "goes on with the same objects")
        return Check("rolls back", "a round that breaks off leaves no trace")

    def reduces(self, neutral: Callable[[], AggregationCallback], to: Callable[[], AggregationCallback]) -> Check:
        """Check that a neutral setting trains as another algorithm."""
        found = self.make_module()
        self._fit(neutral(), found)
        expected = self.make_module()
        other = to()
        self._fit(other, expected)
        apart = distance(found.state_dict(), expected.state_dict())
        if apart > _ROUNDING:
            raise PartCheckError("reduces", f"`neutral` ends {apart:.2g} from {other!r}, with which it must agree.")
        return Check("reduces", f"the neutral setting trains as {other!r}")

    def stacks(self) -> Check:
        """Check that clients that train together end as those that train one after the other."""
        callback = self.make()
        callback.executor = "vectorized"
        module = self.make_module()
        trainer = self._fit(callback, module)
        cause = trainer.fit_loop.executor.cause  # type: ignore[attr-defined]
        hint = (
            "In a stack many clients start before the first ends. Keep nothing of one client for another one, or leave "
            "out `stacks = True`."
        )
        self._same("stack", module.state_dict(), 'a fit with `executor="vectorized"`', hint, _ROUNDING)
        if cause is None:
            return Check("stack", "clients that train together end as one after the other")
        return Check("stack", f"clients train one after the other: {cause}")

    def two_processes(self) -> Check:
        """Check that two processes end as one does."""
        if not hasattr(os, "fork") or torch.cuda.is_initialized():
            reason = "it needs processes that fork, which this system, or CUDA in this process, does not allow"
            return Check("two processes", reason, was_made=False)

        def train() -> list[Any]:
            module = self.make_module()
            trainer = self._fit(self.make(), module, devices=2, strategy="ddp")
            return [module.state_dict(), _counts(trainer)]

        try:
            (one, counts), (other, also_counts) = on_two_processes(train, self.folder, _PATIENCE)
        except TimeoutError as error:
            raise PartCheckError("two processes", f"{error} {_GATHER}") from error
        except RuntimeError as error:
            raise PartCheckError("two processes", f"a process failed. {_GATHER}\n{error}") from error
        if distance(one, other) > 0:
            raise PartCheckError("two processes", f"the processes end with different models. {_GATHER}")
        self._same("two processes", one, "a fit on two processes", _GATHER, _ROUNDING)
        expected = _counts(self.whole[1])
        if not counts == also_counts == expected:
            raise PartCheckError(
                "two processes",
                f"they count {counts} and {also_counts} models sent and steps, and one process {expected}. {_GATHER}",
            )
        return Check("two processes", "two processes end as one does")

    def _fit(self, callback: AggregationCallback, module: L.LightningModule, *others: Any, **options: Any) -> L.Trainer:
        return fit(callback, module, self.make_data(), self.rounds, *others, Scramble(), **options)

    def _breaks_off(self, callback: AggregationCallback, module: L.LightningModule, broken: Break) -> bool:
        """Break a fit off; return whether it was."""
        try:
            self._fit(callback, module, broken)
        except ArithmeticError:
            return True
        return False

    def _same(self, name: str, found: dict[str, Tensor], what: str, hint: str, tolerance: float = 0.0) -> None:
        apart = distance(found, self.whole[0].rounds[-1])
        if apart > tolerance:
            raise PartCheckError(name, f"{what} ends otherwise: weights are up to {apart:.2g} apart. {hint}")

    def _no_places(self, name: str, places: Sequence[str], how: str) -> None:
        if places:
            shown = ", ".join(places[:_NAMED])
            if len(places) > _NAMED:
                shown += f" and {len(places) - _NAMED} more"
            raise PartCheckError(
                name, f"a fit that is broken off and {how} ends otherwise: {shown} differ. {_DECLARE} {_DRAW}"
            )


def _counts(trainer: L.Trainer) -> list[int]:
    """Return the number of models that were sent, and of steps."""
    callback = trainer.callbacks[0]  # type: ignore[attr-defined]
    return [callback.algorithm.models_sent, trainer.global_step]


def check_part(
    part: Any,
    *,
    neutral: Any = None,
    reduces_to: AggregationCallback | None = None,
    module: Callable[[], L.LightningModule] | None = None,
    datamodule: Callable[[], FederatedDataModule] | None = None,
    rounds: int = 3,
) -> PartReport:
    """Try a part, an algorithm or an executor of your own on a tiny problem, in seconds.

    Six clients with three classes train a network with the layers ``body`` and ``head`` for some rounds. The checks, in
    their order:

    ``trains``
        The fit ends with finite numbers, and the model has moved.
    ``assigns``
        Declared tensors are assigned, and none is written to.
    ``draws``
        The seed decides what is drawn, and not the global generators.
    ``fits again``
        A second fit of the same object begins from nothing.
    ``resumes``
        Broken off in mid-round and resumed from its checkpoint, a fit ends with the same bits.
    ``rolls back``
        Broken off in mid-round, a fit goes on as if nothing had happened.
    ``reduces``
        ``neutral`` trains as ``reduces_to``.
    ``stack``
        Clients that train together end as one after the other; or the report says why they cannot.
    ``two processes``
        Two processes end as one does.

    Args:
        part: A part, of which each check makes a copy; an aggregation callback, such as ``Federated(...)`` of several
            parts that belong together; or an executor.
        neutral: The same with settings at which it changes nothing, such as a weight of 0.
        reduces_to: The aggregation callback with which ``neutral`` must agree; by default the one without the part,
            which is FedAvg.
        module: Returns another module than the tiny one, always with the same weights.
        datamodule: Returns other data.
        rounds: Rounds of a fit.

    Returns:
        The checks that held, and those that could not be made, with the reason.

    Raises:
        PartCheckError: If a check fails; it names the check, and what to do.
        TypeError: If ``part`` is nothing that can be checked.

    Example:
        >>> from fl_lightning.testing import check_part
        >>> report = check_part(Proximal(0.1), neutral=Proximal(0.0))
        >>> [check.name for check in report.checks][:3]
        ['trains', 'assigns', 'draws']
    """
    begun = time.monotonic()
    check("`rounds`", rounds, Count)
    make = _maker("part", part)
    if reduces_to is not None:
        check("`reduces_to`", reduces_to, AggregationCallback)
    with _undisturbed(), tempfile.TemporaryDirectory() as folder:
        checks = PartChecks(make, module or BodyAndHead, datamodule or six_clients, rounds, Path(folder))
        made = []
        for name, work in _plan(checks, part, neutral, reduces_to):
            try:
                made.append(work())
            except PartCheckError:
                raise
            except Exception as error:
                raise PartCheckError(name, f"{type(error).__name__}: {error}") from error
    return PartReport(repr(part), made, time.monotonic() - begun)


def _plan(
    checks: PartChecks, part: Any, neutral: Any, reduces_to: AggregationCallback | None
) -> Iterator[tuple[str, Callable[[], Check]]]:
    """Yield the checks by their names, in their order."""
    yield "trains", checks.trains
    yield "assigns", checks.assigns
    yield "draws", checks.draws
    yield "fits again", checks.fits_again
    yield "resumes", checks.resumes
    yield "rolls back", checks.rolls_back
    if neutral is None:
        yield "reduces", lambda: Check("reduces", "give `neutral`, the part at a neutral setting", was_made=False)
    else:
        to = Federated(_CLIENTS) if reduces_to is None else reduces_to
        yield "reduces", lambda: checks.reduces(_maker("neutral", neutral), lambda: deepcopy(to))
    if isinstance(part, Executor):
        yield "stack", lambda: Check("stack", "an executor decides itself", was_made=False)
    else:
        yield "stack", checks.stacks
    yield "two processes", checks.two_processes


def _maker(name: str, part: Any) -> Callable[[], AggregationCallback]:
    """Return a function that returns an algorithm with a copy of the part.

    Raises:
        TypeError: If it is no part.
    """
    if isinstance(part, type):
        raise TypeError(f"`{name}` must be an object, got the class {part.__name__}: call it, {part.__name__}(...).")
    if isinstance(part, AggregationCallback):
        if isinstance(part.executor, Executor):
            return lambda: deepcopy(part)
        return lambda: _one_by_one(deepcopy(part))
    for argument, kind in _KINDS.items():
        if isinstance(part, kind):
            return lambda: _algorithm_of(argument, deepcopy(part))
    kinds = ", ".join(kind.__name__ for kind in _KINDS.values())
    raise TypeError(f"`{name}` must be an aggregation callback, or one of {kinds}, got {part!r}.")


def _one_by_one(callback: AggregationCallback) -> AggregationCallback:
    callback.executor = "sequential"
    return callback


def _algorithm_of(argument: str, part: Any) -> AggregationCallback:
    """Return FedAvg with another part."""
    options: dict[str, Any] = {"executor": "sequential", argument: part}
    if argument != "sampler":
        options["clients_per_round"] = _CLIENTS
    return Federated(**options)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the fits' lines and warnings to themselves, and leave the global generators as they are.

    The fits are so small that threads would only wait for each other.
    """
    threads = torch.get_num_threads()
    loggers = [logging.getLogger("lightning.pytorch"), logging.getLogger("lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), preserved_generators(torch.device("cpu")):
            warnings.simplefilter("ignore")
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(threads)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
