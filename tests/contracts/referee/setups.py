"""One line for each set-up, and what becomes of each cell of the table *methods x set-ups*."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from contracts.referee.fitting import Fitted, Refused, fit, quiet
from contracts.referee.methods import METHODS, Method
from contracts.referee.module import Kind, Net
from contracts.referee.rounds import SPEEDS, Expected, MustRefuse, Options
from lightning.pytorch.callbacks import Callback, EarlyStopping

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.testing.fits import Break
from fl_lightning.testing.processes import on_two_processes

ROUNDS = 3
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Setup:
    """What a cell's fit has beside its method.

    Attributes:
        kind: What the module has.
        options: What travels, and the buffers' rule.
        work: Options of the callback: local epochs or steps.
        others: Further callbacks of the trainer.
        rounds: Most rounds.
        personal_twice: Whether its personal tensors are added where the method has personal ones already.
        lookahead: How many clients of an asynchronous schedule are trained together.
        way: How it is trained, if the model must be that of a sequential fit in one go: ``"stacked"``, ``"resumed"``
            or ``"two processes"``. The referee then is that fit.
    """

    kind: Kind = field(default_factory=Kind)
    options: Options = field(default_factory=Options)
    work: Mapping[str, int] = field(default_factory=lambda: {"local_epochs": 2})
    others: Callable[[], list[Callback]] = list
    rounds: int = ROUNDS
    personal_twice: bool = False
    lookahead: int | None = None
    way: str = ""


BATCH_NORM = Kind(norm=True)
KEPT = Options(kept=True)
KEPT_MUCH = {
    "kind": Kind(norm=True, momentum=0.9, decays=True),
    "options": Options(kept=True, personal=("head",), buffers="local"),
}
MUCH = {"kind": Kind(norm=True, weight_decay=0.05), "options": Options(personal=("head",))}

SETUPS: dict[str, Setup] = {
    "plain": Setup(),
    "local steps": Setup(work={"local_steps": 3}),
    "buffers averaged": Setup(BATCH_NORM),
    "buffers local": Setup(BATCH_NORM, Options(buffers="local")),
    "buffers of the server": Setup(BATCH_NORM, Options(buffers="server")),
    "momentum and decay": Setup(Kind(momentum=0.9, weight_decay=0.05)),
    "personal head": Setup(options=Options(personal=("head",)), personal_twice=True),
    "compressed up": Setup(options=Options(up=0.3)),
    "compressed down": Setup(options=Options(down=0.3)),
    "compressed, BatchNorm": Setup(BATCH_NORM, Options(personal=("head",), up=0.3, down=0.3)),
    "head alone trained": Setup(Kind(head_only=True)),
    "class weights": Setup(Kind(class_weights=True)),
    "tied head": Setup(Kind(tied=True)),
    "rate by step": Setup(Kind(decays=True)),
    "early stopping": Setup(others=lambda: [EarlyStopping("still", patience=1, mode="min")], rounds=5),
    "proximal too": Setup(options=Options(mu=0.4)),
    "asynchronous": Setup(options=Options(asynchronous=True)),
    "asynchronous, personal": Setup(
        BATCH_NORM, Options(asynchronous=True, buffers="local", personal=("head",), up=0.5, down=0.5), lookahead=1
    ),
    "power of choice": Setup(options=Options(choice="power")),
    "power of choice, personal": Setup(
        BATCH_NORM, Options(choice="power", personal=("head",), down=0.3, buffers="local")
    ),
    "active": Setup(options=Options(choice="active")),
    "active, personal": Setup(BATCH_NORM, Options(choice="active", personal=("head",), down=0.3, buffers="local")),
    "importance": Setup(options=Options(choice="importance")),
    "kept momentum": Setup(Kind(momentum=0.9, weight_decay=0.05), KEPT),
    "kept AdamW": Setup(Kind(adam=True, weight_decay=0.05), KEPT),
    "kept AdamW, personal": Setup(
        Kind(norm=True, adam=True), Options(kept=True, personal=("head",), up=0.5, down=0.3, buffers="local")
    ),
    "kept rate by step": Setup(Kind(momentum=0.9, decays=True), KEPT),
    "kept, head alone trained": Setup(Kind(momentum=0.9, head_only=True), KEPT),
    "kept, class weights": Setup(Kind(adam=True, class_weights=True), KEPT),
    "kept, tied head": Setup(Kind(adam=True, tied=True), KEPT),
    "kept, early stopping": Setup(
        Kind(momentum=0.9), KEPT, others=lambda: [EarlyStopping("still", patience=1, mode="min")], rounds=5
    ),
    "kept, asynchronous": Setup(Kind(momentum=0.9), Options(kept=True, asynchronous=True)),
    "kept, stacked": Setup(**KEPT_MUCH, way="stacked"),
    "kept, resumed": Setup(**KEPT_MUCH, way="resumed"),
    "kept, two processes": Setup(**KEPT_MUCH, way="two processes"),
    "stacked": Setup(**MUCH, way="stacked"),
    "resumed": Setup(**MUCH, way="resumed"),
    "two processes": Setup(**MUCH, way="two processes"),
}


def cells() -> Iterator[tuple[str, str]]:
    """Return the cells that have a meaning, by the names of their methods and set-ups."""
    for name, method in METHODS.items():
        for title, setup in SETUPS.items():
            if has_meaning(method, setup):
                yield name, title


def has_meaning(method: Method, setup: Setup) -> bool:
    """Return whether a method can be had in a set-up, and a paper says what it then is."""
    options = setup.options
    composed = None if method.parts is None else method.parts()
    if options.mu:
        return composed is not None and "objective" not in composed
    if options.asynchronous:
        return composed is not None and "schedule" not in composed
    if method.referee.asynchronous:
        # a schedule by step, and a sampler, go by rounds
        return not (setup.kind.decays or options.choice)
    # a sampler asks for a score at the server's one model
    return method.one_model or not options.choice


@dataclass
class Outcome:
    """How a cell ends.

    Attributes:
        word: ``"right"``, ``"refused"`` or ``"wrong"``.
        text: What is wrong, or the message.
        seconds: How long it took.
    """

    word: str
    text: str = ""
    seconds: float = 0.0


def play(name: str, title: str) -> Outcome:
    """Fit a cell and compare it with the referee."""
    method = METHODS[name]
    setup = fitting(method, SETUPS[title])
    begun = time.process_time()
    try:
        fitted, expected = both(method, setup)
        wrong = differences(fitted, expected)
        outcome = Outcome("wrong" if wrong else "right", "; ".join(wrong))
    except Refused as refusal:
        outcome = Outcome("refused", str(refusal))
    except MustRefuse as reason:
        outcome = Outcome("wrong", f"it must be refused: {reason}")
    outcome.seconds = time.process_time() - begun
    return outcome


def fitting(method: Method, setup: Setup) -> Setup:
    """Return the set-up with what the method needs, and without what it has already."""
    if method.needs_norm:
        setup = replace(setup, kind=replace(setup.kind, norm=True))
    if method.referee.personal and not setup.personal_twice:
        setup = replace(setup, options=replace(setup.options, personal=()))
    return setup


def both(method: Method, setup: Setup) -> tuple[Fitted, Expected]:
    """Return what a cell's fit shows, and what it must show."""
    if not setup.way:
        fitted = fit(lambda: make(method, setup), setup.kind, setup.rounds, *setup.others())
        return fitted, method.referee(fitted, setup.kind, setup.options).play()
    usual = fit(lambda: make(method, setup), setup.kind, setup.rounds, record=False)
    with tempfile.TemporaryDirectory() as folder:
        fitted = WAYS[setup.way](method, setup, Path(folder))
    sent = usual.sent
    return fitted, Expected(usual.server, usual.own, usual.shared, sent["fed/bytes_down"], sent["fed/bytes_up"])


def stacked(method: Method, setup: Setup, folder: Path) -> Fitted:
    """Train clients as a stack where the method allows it."""
    return fit(lambda: make(method, setup, executor="vectorized"), setup.kind, setup.rounds, record=False)


def resumed(method: Method, setup: Setup, folder: Path) -> Fitted:
    """Break the fit off within its second round, and resume it."""
    path = folder / "mid.ckpt"
    again = partial(fit, lambda: make(method, setup), setup.kind, setup.rounds, record=False)
    try:
        again(Break(1, path))
    except ArithmeticError:
        return again(ckpt_path=path)
    raise AssertionError("the fit was not broken off")


def on_processes(method: Method, setup: Setup, folder: Path) -> Fitted:

    def train() -> dict[str, Any]:
        options = {"devices": 2, "strategy": "ddp"}
        fitted = fit(lambda: make(method, setup), setup.kind, setup.rounds, record=False, **options)
        return asdict(replace(fitted, callback=None))

    with quiet():
        one, _ = on_two_processes(train, folder)
    return Fitted(**one)


WAYS = {"stacked": stacked, "resumed": resumed, "two processes": on_processes}


def make(method: Method, setup: Setup, executor: str = "sequential") -> fl.AggregationCallback:
    """Make the method's callback for a set-up."""
    options = setup.options
    common: dict[str, Any] = {"seed": 1, "executor": executor, "buffers": options.buffers, **setup.work}
    if options.kept:
        common["optimizer_state"] = "kept"
    if options.choice == "power":
        common["sampler"] = parts.PowerOfChoice(2, 4)
    elif options.choice == "active":
        # no other client than the two of the largest valuations can be drawn
        common["sampler"] = parts.ActiveSampler(2, alpha1=0.5, alpha2=1.0, alpha3=0.0)
    elif options.choice == "importance":
        common["sampler"] = parts.ImportanceSampler(2)
    else:
        common["clients_per_round"] = 3
    given = {"module": Net(setup.kind)} if method.takes_module else {}
    exchange: list[parts.Exchange] = []
    if options.personal:
        exchange.append(parts.PersonalParameters(list(options.personal)))
    if options.up is not None:
        exchange.append(parts.TopK(options.up))
    if options.down is not None:
        exchange.append(parts.TopK(options.down, link="down"))
    if not (options.mu or options.asynchronous):
        if exchange:
            common["exchange"] = exchange
        if method.knows_momentum:
            common["momentum"] = setup.kind.momentum
        return method.named(**common, **given)
    assert method.parts is not None
    composed = dict(method.parts(**given))
    if options.mu:
        composed["objective"] = parts.Proximal(options.mu)
    if options.asynchronous:
        clock = parts.VirtualClock(SPEEDS)
        composed["schedule"] = parts.Asynchronous(clock, buffer_size=2, lookahead=setup.lookahead)
    composed["exchange"] = [*composed.get("exchange", []), *exchange]
    return fl.Federated(**composed, **common)


def differences(fitted: Fitted, expected: Expected) -> list[str]:
    """Return what is wrong: the right value and the one that the fit has."""
    wrong = list(expected.complaints)
    for name, value in expected.server.items():
        got = fitted.server[name]
        apart = float((got.double() - value.double()).abs().max())
        if not apart <= TOLERANCE:
            wrong.append(f"server's {name} is {apart:.1e} away: {value.flatten()[0]:.9g}, got {got.flatten()[0]:.9g}")
    for what, right, shown in (
        ("own model", expected.own, fitted.own),
        ("shared model", expected.shared, fitted.shared),
    ):
        for client, score in right.items():
            if not abs(score - shown[client]) <= TOLERANCE:
                wrong.append(f"{what} of client {client} scores {score:.9g}, got {shown[client]:.9g}")
    for way, count in (("down", expected.bytes_down), ("up", expected.bytes_up)):
        counted = fitted.sent[f"fed/bytes_{way}"]
        if count is not None and count != counted:
            wrong.append(f"bytes {way} are {count:g}, got {counted:g}")
    return wrong
