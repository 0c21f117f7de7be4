"""FedAvg as a plain loop, and all that lies between a server and its clients: what a set-up changes.

Rules that hold for every method:

* A client *receives* the server's model, compressed as the set-up says, with its own personal values and buffers. That
  model is the centre of every pull, and the start of every training of the server's model.
* *Trained* is what an optimizer holds. All else is state, as buffers are, and constant tensors are not sent.
* A client's optimizer is new in each training, and schedules by step go on by the mean number of steps in a round;
  unless clients keep both: then each goes on with its own optimizer, and its schedule counts its own steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from fractions import Fraction

import torch
from contracts.referee.fitting import Fitted, Training, rows
from contracts.referee.module import (
    ADAM_EPS,
    BATCH_SIZE,
    CLASS_WEIGHTS,
    DECAY,
    LR,
    SIZES,
    TRAIN,
    VAL,
    Kind,
    Loss,
    State,
    cross_entropy,
    fingerprint,
    forward,
)
from torch import Tensor

BUFFERS = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "centre")
SPEEDS = (5, 4, 3, 1)
#: Results that arrive in a round.
ARRIVALS = 3
Added = Callable[[State], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Options:
    """What a set-up changes beside the module.

    Attributes:
        buffers: The rule for buffers.
        personal: Patterns of tensors that stay with each client.
        up: Share of the values that TopK sends up, with error feedback; ``None`` sends all.
        down: The same of the way down.
        mu: Weight of a proximal term beside the method's own objective.
        choice: How the two clients of a round are chosen: ``"power"``, by the largest losses of all; ``"active"``, by
            the largest valuations; ``"importance"``, by gradient norms; empty for a uniform draw.
        asynchronous: Whether clients work at their own pace, and the server moves with every second result.
        kept: Whether clients keep what their optimizers hold.
    """

    buffers: str = "average"
    personal: tuple[str, ...] = ()
    up: float | None = None
    down: float | None = None
    mu: float = 0.0
    choice: str = ""
    asynchronous: bool = False
    kept: bool = False


@dataclass
class Expected:
    """What the referee says."""

    server: State
    own: dict[int, float]
    shared: dict[int, float]
    bytes_down: float | None
    bytes_up: float | None
    complaints: list[str] = field(default_factory=list)


class MustRefuse(Exception):
    """A combination that has no meaning, and that the library must refuse before training."""


@dataclass
class Report:
    """What a client sends, and how it came about."""

    client: int
    received: State
    trained: State
    sent: State
    rates: list[float]
    loss: float = 0.0
    staleness: int = 0


def copy(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def mean(states: Sequence[State], weights: Sequence[float]) -> State:
    """Return the weighted mean; whole numbers are rounded."""
    total = float(sum(weights))
    result = {}
    for name, tensor in states[0].items():
        value = sum(weight * state[name].double() for weight, state in zip(weights, states, strict=True)) / total
        result[name] = value if tensor.is_floating_point() else value.round().to(tensor.dtype)
    return result


def flat(state: State, names: Sequence[str]) -> Tensor:
    return torch.cat([state[name].flatten() for name in names])


def unflat(vector: Tensor, like: State, names: Sequence[str]) -> State:
    pieces = vector.split([like[name].numel() for name in names])
    return {name: piece.reshape(like[name].shape) for name, piece in zip(names, pieces, strict=True)}


def largest(vector: Tensor, share: float) -> Tensor:
    """Keep the values of the largest magnitude."""
    kept = vector.abs().topk(max(1, int(share * len(vector)))).indices
    result = torch.zeros_like(vector)
    result[kept] = vector[kept]
    return result


class SGD:
    """Plain SGD with momentum and weight decay on a dictionary of tensors; or AdamW."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.velocity: State = {}
        self.square: State = {}
        self.steps = 0

    def step(self, state: State, gradient: Mapping[str, Tensor], lr: float) -> None:
        self.steps += 1
        if self.kind.adam:
            self.adam(state, gradient, lr)
        else:
            self.sgd(state, gradient, lr)

    def adam(self, state: State, gradient: Mapping[str, Tensor], lr: float) -> None:
        for name, value in gradient.items():
            self.velocity[name] = 0.9 * self.velocity.get(name, 0.0) + 0.1 * value
            self.square[name] = 0.999 * self.square.get(name, 0.0) + 0.001 * value * value
            first = self.velocity[name] / (1 - 0.9**self.steps)
            second = self.square[name] / (1 - 0.999**self.steps)
            decayed = state[name] - lr * self.kind.weight_decay * state[name]
            state[name] = decayed - lr * first / (second.sqrt() + ADAM_EPS)

    def sgd(self, state: State, gradient: Mapping[str, Tensor], lr: float) -> None:
        for name, value in gradient.items():
            direction = value + self.kind.weight_decay * state[name]
            if self.kind.momentum:
                if name in self.velocity:
                    direction = self.kind.momentum * self.velocity[name] + direction
                self.velocity[name] = direction
            state[name] = state[name] - lr * direction


class Referee:
    """FedAvg. A method overrides what it does otherwise.

    Args:
        fitted: A fit, of which the first model and the batches are used.
        kind: What the module has.
        options: What the set-up changes.
    """

    #: Patterns of the method's own personal tensors.
    personal: tuple[str, ...] = ()
    #: Whether the method has clients that work at their own pace, and with how many results the server moves.
    asynchronous = False
    buffer_size = 2
    #: Whether clients keep what their optimizers hold in every set-up.
    always_kept = False
    #: The trainings whose optimizers they may keep.
    kept_phases: tuple[int, ...] = (0,)
    #: Whether clients count alike, and not by their samples.
    uniform = False
    #: How often a step passes a batch through.
    passes = 1

    def __init__(self, fitted: Fitted, kind: Kind, options: Options) -> None:
        self.kind = kind
        self.options = options
        self.first = fitted.first
        self.server = copy(fitted.first)
        self.rounds = fitted.rounds
        self.clients = range(len(SIZES))
        self.trainings = fitted.trainings
        self.buffers = [name for name in self.first if name in BUFFERS]
        self.trained = [name for name in self.first if name not in BUFFERS]
        if kind.head_only:
            self.trained = [name for name in self.trained if name.startswith("head")]
        self.kept = self.find(self.personal + options.personal)
        if options.buffers == "server":
            # what the user says about buffers counts
            self.kept = [name for name in self.kept if name not in self.buffers]
        if "*" not in self.personal and set(self.trained) <= set(self.find(self.personal)):
            raise MustRefuse("all that an optimizer holds is personal")
        self.travels = [name for name in self.trained if name not in self.kept]
        self.values: dict[int, State] = {}  # personal values
        self.local: dict[int, State] = {}  # buffers of clients
        self.known: dict[tuple[int, int], State] = {}
        self.owed: dict[int, Tensor] = {}
        self.keeps = self.always_kept or options.kept
        self.optimizers: dict[tuple[int, int], SGD] = {}
        self.made: dict[tuple[int, int], int] = {}
        self.held: dict[int, State] = {}
        self.worth: dict[int, float] = {}
        self.received: dict[int, State] = {}
        self.complaints: list[str] = []
        self.bits_down = 0.0
        self.bits_up = 0.0
        self.lr = LR
        self.round = 0

    def find(self, patterns: Sequence[str]) -> list[str]:
        """Return the trained tensors and buffers that patterns name; a tied tensor has two names."""
        found = []
        for name in [*self.trained, *self.buffers]:
            names = [name]
            if self.kind.tied and name == "middle.weight":
                names.append("head.weight")
            if any(fnmatch(each, pattern) or each.startswith(f"{pattern}.") for each in names for pattern in patterns):
                found.append(name)
        return found

    # ---- the loop ----

    def play(self) -> Expected:
        if self.asynchronous or self.options.asynchronous:
            self.play_in_virtual_time()
        else:
            for number in range(self.rounds):
                self.round = number
                self.received = {}
                self.choose(number)
                self.play_round(number)
                self.held = {}
                self.value(number)
                self.advance(number)
        server = self.shown()
        own = {client: self.score(self.own_model(client), client) for client in self.clients}
        shared = {client: self.score(server, client) for client in self.clients}
        return Expected(server, own, shared, self.bits_down / 8, self.bits_up / 8, self.complaints)

    def play_round(self, number: int) -> None:
        reports = [self.visit(training) for training in self.of_phase(number, 0)]
        self.held = {}
        self.merge(reports)

    def play_in_virtual_time(self) -> None:
        """Let clients work at their own pace: each has the newest model as soon as its result is there."""
        left = {client: [each for each in self.trainings if each.client == client] for client in self.clients}
        under_way = [(Fraction(100, SPEEDS[client]), client, self.receive(client), 0) for client in self.clients]
        waiting: list[Report] = []
        self.version = self.arrived = 0
        arrivals = ARRIVALS * self.rounds
        for number in range(arrivals):
            now, client, received, stamp = min(under_way, key=lambda each: each[:2])
            under_way = [each for each in under_way if each[1] != client]
            report = self.visit(left[client].pop(0), received)
            report.staleness = self.counter() - stamp
            self.arrived += 1
            waiting.append(report)
            if len(waiting) == self.buffer_size:
                self.merge(waiting)
                self.version += 1
                waiting = []
            if number == arrivals - 1:
                # the fit has ended: nobody is sent a model that would be trained in the next round
                return
            under_way.append((now + Fraction(100, SPEEDS[client]), client, self.receive(client), self.counter()))

    def counter(self) -> int:
        """Return what staleness counts."""
        return self.version

    def choose(self, number: int) -> None:
        """Check that the clients of a round are those that the set-up's rule chooses."""
        drawn = sorted(training.client for training in self.of_phase(number, 0))
        if self.options.choice == "importance":
            self.count_scores(number)
        elif self.options.choice == "power":
            self.ask(self.clients, by_size=False)
            self.check(number, drawn)
        elif self.options.choice == "active":
            if number == 0:
                self.ask(self.clients, by_size=True)
            self.check(number, drawn)

    def ask(self, clients: Sequence[int], by_size: bool) -> None:
        """Let clients say their loss at the model that they receive."""
        for client in clients:
            self.held[client] = self.receive(client)
            self.worth[client] = self.risk(self.held[client], client) * (SIZES[client] ** 0.5 if by_size else 1.0)
            self.bits_up += 64

    def check(self, number: int, drawn: list[int]) -> None:
        """Complain unless the two clients of the largest worth were drawn."""
        right = sorted(sorted(self.clients, key=lambda client: -self.worth[client])[:2])
        if drawn != right:
            self.complaints.append(f"round {number} has clients {drawn}, right are {right}")

    def value(self, number: int) -> None:
        """Let the clients of a round say their valuation at the model that they received to train it."""
        if self.options.choice == "active":
            for training in self.of_phase(number, 0):
                client = training.client
                self.worth[client] = self.risk(self.received[client], client) * SIZES[client] ** 0.5
                self.bits_up += 64

    def count_scores(self, number: int) -> None:
        """Count a number up for each client that trains, and at first a model down and a number up for all."""
        self.bits_up += 64 * len(self.of_phase(number, 0))
        if number == 0:
            for client in self.clients:
                self.held[client] = self.receive(client)
                self.bits_up += 64

    def of_phase(self, number: int, phase: int) -> list[Training]:
        return [each for each in self.trainings if each.round == number and each.phase == phase]

    def visit(self, training: Training, received: State | None = None) -> Report:
        """Let one client train the server's model, or one that it received before."""
        if received is None:
            received = self.receive(training.client)
        return self.report(training.client, received, *self.local_training(training, received))

    def report(self, client: int, received: State, trained: State, rates: list[float]) -> Report:
        return Report(client, received, trained, self.send(client, received, trained), rates)

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        return self.sgd(training, received, centre=received)

    def merge(self, reports: list[Report]) -> None:
        self.server = self.average(reports)

    def average(self, reports: list[Report]) -> State:
        """Return the server's model with the mean of what travels."""
        return self.mean_of([report.sent for report in reports], self.weights_of(reports))

    def weights_of(self, reports: list[Report]) -> list[float]:
        return [1.0 if self.uniform else float(SIZES[report.client]) for report in reports]

    def mean_of(self, models: Sequence[State], weights: Sequence[float]) -> State:
        """Return the server's model with a mean of what travels of some models."""
        names = self.travels + self.buffers
        return {**copy(self.server), **mean([self.only(model, names) for model in models], weights)}

    def typed(self, model: State) -> State:
        """Return a model in the module's types, with whole numbers where it counts."""
        return {
            name: model[name] if first.is_floating_point() else model[name].double().round().to(first.dtype)
            for name, first in self.first.items()
        }

    def moved(self, state: State, direction: State, step: float | Tensor) -> State:
        return {**state, **{name: state[name] + step * direction[name] for name in self.trained}}

    # ---- between server and clients ----

    def receive(self, client: int, model: State | None = None, link: int = 0) -> State:
        """Return the model from which a client starts; ``link`` numbers the server's models, if it has several."""
        if client in self.held and (model is None or all(model[name].equal(self.server[name]) for name in model)):
            # it was sent to be scored before the draw
            return self.held.pop(client)
        state = copy(self.server if model is None else model)
        down = self.options.down
        if not self.travels:
            down = None
        if down is None:
            self.bits_down += 64 * self.count(self.travels)
        else:
            known = self.known.get((client, link), self.first)
            names = self.travels
            vector = flat(known, names) + largest(flat(state, names) - flat(known, names), down)
            state.update(unflat(vector, state, names))
            self.known[client, link] = copy(state)
            self.bits_down += self.compressed_bits(down)
        # buffers that clients keep are not sent, nor are the server's that never change
        if self.options.buffers == "average":
            self.bits_down += 64 * self.count([name for name in self.buffers if name not in self.kept])
        elif self.options.buffers == "local":
            state.update(self.local.get(client, self.only(self.first, self.buffers)))
        state.update(self.values.get(client, self.only(self.first, self.kept)))
        self.received.setdefault(client, copy(state))
        return state

    def send(self, client: int, received: State, trained: State) -> State:
        """Return what the server gets of a client's model."""
        sent = copy(trained)
        if self.kept:
            self.values[client] = self.only(trained, self.kept)
        buffers = [name for name in self.buffers if name not in self.kept]
        if self.options.buffers == "average":
            self.bits_up += 64 * self.count(buffers)
        elif self.options.buffers == "local":
            self.local[client] = self.only(trained, self.buffers)
        else:
            sent.update(self.only(received, self.buffers))
        up = self.options.up
        if not self.travels:
            up = None
        if up is None:
            self.bits_up += 64 * self.count(self.travels)
        else:
            start = flat(received, self.travels)
            update = flat(trained, self.travels) - start + self.owed.get(client, 0.0)
            kept = largest(update, up)
            self.owed[client] = update - kept
            sent.update(unflat(start + kept, sent, self.travels))
            self.bits_up += self.compressed_bits(up)
        return sent

    def compressed_bits(self, share: float) -> float:
        count = self.count(self.travels)
        return max(1, int(share * count)) * (64 + math.ceil(math.log2(count)))

    def count(self, names: Sequence[str]) -> int:
        return sum(self.first[name].numel() for name in names)

    @staticmethod
    def only(state: State, names: Sequence[str]) -> State:
        return {name: state[name].clone() for name in names}

    # ---- models that are evaluated ----

    def shown(self) -> State:
        """Return the model that all share; personal values are the mean over all clients."""
        state = copy(self.server)
        if self.kept:
            values = [self.values.get(client, self.only(self.first, self.kept)) for client in self.clients]
            state.update(mean(values, [1.0] * len(values)))
        return state

    def own_model(self, client: int) -> State:
        """Return the model with which a client is evaluated: its own after its first training."""
        state = self.shared_with(client)
        state.update(self.values.get(client, {}))
        if self.options.buffers == "local":
            state.update(self.local.get(client, {}))
        return state

    def shared_with(self, client: int) -> State:
        """Return the model that a client shares with others."""
        return self.shown()

    def score(self, state: State, client: int) -> float:
        x, y = VAL[client]
        _, logits, _ = forward(self.network(state), x, train=False)
        return float(fingerprint(logits, y))

    # ---- training ----

    def loss(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """Return the user's own loss."""
        return cross_entropy(logits, y, CLASS_WEIGHTS if self.kind.class_weights else None)

    def risk(self, state: State, client: int) -> float:
        """Return the client's mean loss at a model, in evaluation mode, batch by batch in the order of the data."""
        x, y = TRAIN[client]
        total = 0.0
        for inputs, targets in zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True):
            _, logits, _ = forward(self.network(state), inputs, train=False)
            weights = CLASS_WEIGHTS if self.kind.class_weights else None
            total += len(targets) * float(cross_entropy(logits, targets, weights))
        return total / len(y)

    def network(self, state: State) -> State:
        """Return the tensors of the network that computes with a state."""
        return state

    def gradient(
        self, state: State, x: Tensor, y: Tensor, names: Sequence[str], loss: Loss | None = None
    ) -> tuple[State, State]:
        """Return the gradient at a model in training mode, and the new values of buffers."""
        leaves = {name: tensor.detach().clone() for name, tensor in state.items()}
        for name in names:
            leaves[name].requires_grad_()
        features, logits, new = forward(self.network(leaves), x, train=True)
        value = (loss or self.loss)(features, logits, y)
        gradients = torch.autograd.grad(value, [leaves[name] for name in names])
        return dict(zip(names, gradients, strict=True)), new

    def sgd(
        self,
        training: Training,
        start: State,
        *,
        centre: State | None = None,
        added: Added | None = None,
        frozen: Sequence[str] = (),
        loss: Callable[[Tensor], Loss] | None = None,
        mu: float | None = None,
    ) -> tuple[State, list[float]]:
        """Train by the module's SGD on the recorded batches, and return the model and the steps' learning rates.

        Args:
            training: Whose batches are taken.
            start: Where it starts.
            centre: The centre of the set-up's proximal term.
            added: What is added to the gradient at a model.
            frozen: Tensors that stay as they are.
            loss: The loss on some inputs; the user's own if ``None``.
            mu: Weight of the proximal term; the set-up's if ``None``.
        """
        mu = self.options.mu if mu is None else mu
        state = copy(start)
        optimizer = self.optimizer_of(training)
        names = [name for name in self.trained if name not in frozen]
        rates = self.rates(training, len(training.batches))
        for places, lr in zip(training.batches, rates, strict=True):
            x, y = rows(training.client, places)
            gradient, new = self.gradient(state, x, y, names, loss(x) if loss else None)
            if added is not None:
                extra = added(state)
                gradient = {name: value + extra[name] if name in extra else value for name, value in gradient.items()}
            if centre is not None and mu:
                gradient = {name: value + mu * (state[name] - centre[name]) for name, value in gradient.items()}
            state.update(new)
            optimizer.step(state, gradient, lr)
        return state, rates

    def keeps_optimizer_of(self, training: Training) -> bool:
        return self.keeps and training.phase in self.kept_phases

    def optimizer_of(self, training: Training) -> SGD:
        """Return the optimizer of a training: a new one, unless the client keeps it."""
        if not self.keeps_optimizer_of(training):
            return SGD(self.kind)
        return self.optimizers.setdefault((training.client, training.phase), SGD(self.kind))

    def rates(self, training: Training, steps: int) -> list[float]:
        """Return the learning rates of a client's next steps: a schedule moves to the end of the round's stretch.

        A client that keeps its schedule goes on from all the steps that it has made.
        """
        if not self.kind.decays:
            return [LR] * steps
        if self.keeps_optimizer_of(training):
            whose = (training.client, training.phase)
            made = self.made.get(whose, 0)
            self.made[whose] = made + steps
            return [LR * DECAY ** (made + step) for step in range(steps)]
        stretch = self.stretch(self.round)
        return [self.lr * DECAY ** min(step, stretch) for step in range(steps)]

    def stretch(self, number: int) -> int:
        counts = [self.steps_of(each) for each in self.of_phase(number, 0)]
        return math.ceil(sum(counts) / len(counts))

    def steps_of(self, training: Training) -> int:
        return len(training.batches) // self.passes

    def advance(self, number: int) -> None:
        if self.kind.decays and self.of_phase(number, 0):
            self.lr *= DECAY ** self.stretch(number)
