"""One line for each method: how the library makes it, and the referee that says what it must compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from contracts.referee.fitting import Training, rows, tensors_of
from contracts.referee.module import BATCH_SIZE, FEATURES, LR, SIZES, TRAIN, WIDTH, Kind, Net, State, forward
from contracts.referee.rounds import BUFFERS, SGD, SPEEDS, Loss, MustRefuse, Referee, Report, copy, flat, mean, unflat
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.models import add_lora
from fl_lightning.seeding import Stream, torch_generator

HEAD = ("head",)
MU = 0.7
LAM = 0.6


class Proximal(Referee):
    """FedProx, eq. (4): a pull to the received model."""

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        return self.sgd(training, received, centre=received, mu=MU + self.options.mu)


class Personal(Referee):
    """FedPer: the head is each client's own."""

    personal = HEAD


class ServerSteps(Referee):
    """FedAvg whose server takes a step of its own."""

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        """Return the server's step, given that to the mean."""
        raise NotImplementedError

    def merge(self, reports: list[Report]) -> None:
        merged = self.average(reports)
        before = flat(self.server, self.travels)
        moved = before + self.step(flat(merged, self.travels) - before, reports)
        merged.update(unflat(moved, self.server, self.travels))
        self.server = merged

    def update(self, report: Report) -> Tensor:
        """Return the difference that a client sends."""
        return flat(report.sent, self.travels) - flat(report.received, self.travels)


class OwnModels(Referee):
    """Clients keep a model of their own in ``own``."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.own: dict[int, State] = {}

    def own_model(self, client: int) -> State:
        return self.own[client] if client in self.own else super().own_model(client)


class Ditto(OwnModels):
    """Ditto, Algorithm 1: v_k takes steps along grad F_k(v) + lam (v - w), w the received model."""

    kept_phases = (0, 1)

    def play_round(self, number: int) -> None:
        reports = [self.visit(training) for training in self.of_phase(number, 0)]
        received = {report.client: report.received for report in reports}
        for training in self.of_phase(number, 1):
            centre = received[training.client]
            start = self.own.get(training.client, self.first)
            self.own[training.client], _ = self.sgd(training, start, centre=centre, mu=LAM)
        self.merge(reports)


class FineTuned(OwnModels):
    """FedAvg, whose clients tune the server's new model every second round, and after the last one."""

    def play_round(self, number: int) -> None:
        super().play_round(number)
        for training in self.of_phase(number, 1):
            self.own[training.client] = self.tune(training, self.receive(training.client))

    def tune(self, training: Training, received: State) -> State:
        return self.sgd(training, received, mu=0.0)[0]


class BABU(FineTuned):
    """FedBABU: the head stays as it is while the body is learnt; then all is tuned."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.frozen = [name for name in self.find(HEAD) if name in self.trained]
        if self.frozen == self.trained:
            raise MustRefuse("all that an optimizer holds is frozen")
        # what stays as it is need not be sent
        self.travels = [name for name in self.travels if name not in self.frozen]

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        return self.sgd(training, received, centre=received, frozen=self.frozen)


class Rep(Referee):
    """FedRep: a client trains its head with the body frozen, then the body with the head frozen."""

    personal = HEAD
    kept_phases = (0, 1)

    def visit(self, training: Training, received: State | None = None) -> Report:
        received = received or self.receive(training.client)
        head = [name for name in self.trained if name in self.kept]
        body = [name for name in self.trained if name not in self.kept]
        [first] = [each for each in self.of_phase(training.round, 1) if each.client == training.client]
        tuned, _ = self.sgd(first, received, centre=received, frozen=body)
        # what the head's phase changes of buffers is dropped
        start = {**received, **{name: tuned[name] for name in head}}
        return self.report(training.client, received, *self.sgd(training, start, centre=received, frozen=head))


class LG(Referee):
    """LG-FedAvg: the body is each client's own."""

    personal = ("body",)


class BN(Referee):
    """FedBN: normalisation layers are each client's own, with their buffers."""

    personal = ("norm",)


class Alone(Referee):
    """Local: all is each client's own, and so are what its optimizer holds and its schedule."""

    personal = ("*",)
    always_kept = True


class ALA(OwnModels):
    """FedALA: the start is v + (w - v) a, with a learnt by steps along (w - v) grad, and kept in [0, 1]."""

    mixed = HEAD
    share_lr = 1.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shares: dict[int, State] = {}

    def visit(self, training: Training, received: State | None = None) -> Report:
        client = training.client
        received = received or self.receive(client)
        names = [name for name in self.find(self.mixed) if name in self.trained]
        last = self.own.get(client, self.first)
        shares = self.shares.get(client, {name: torch.ones_like(received[name]) for name in names})
        [first] = [each for each in self.of_phase(training.round, 1) if each.client == client]
        buffers = self.only(received, self.buffers)
        for places in first.batches:
            mix = {**self.mix(last, received, shares), **buffers}
            gradient, new = self.gradient(mix, *rows(client, places), names)
            buffers.update(new)
            for name in names:
                step = (received[name] - last[name]) * gradient[name]
                shares[name] = (shares[name] - self.share_lr * step).clamp(0, 1)
        self.shares[client] = shares
        start = self.mix(last, received, shares)
        self.own[client], rates = self.sgd(training, start, centre=received)
        return self.report(client, received, self.own[client], rates)

    @staticmethod
    def mix(last: State, received: State, shares: State) -> State:
        mixed = copy(received)
        for name, share in shares.items():
            mixed[name] = last[name] + (received[name] - last[name]) * share
        return mixed


class IFCA(Referee):
    """IFCA: the server keeps several models; a client trains the one with the smallest loss on its samples."""

    clusters = 2

    def __init__(self, fitted: Any, *arguments: Any) -> None:
        super().__init__(fitted, *arguments)
        self.models = [self.typed(model) for model in fitted.clusters]
        self.chosen: dict[int, int] = {}

    def play_round(self, number: int) -> None:
        chosen: list[int] = []
        reports: list[Report] = []
        for training in self.of_phase(number, 0):
            candidates = [self.receive(training.client, model, link) for link, model in enumerate(self.models)]
            losses = [self.risk(model, training.client) for model in candidates]
            best = losses.index(min(losses))
            reports.append(self.visit(training, candidates[best]))
            chosen.append(best)
            # a client says which one it chose
            self.bits_up += 64
            self.chosen[training.client] = best
        for cluster in range(self.clusters):
            members = [report for report, best in zip(reports, chosen, strict=True) if best == cluster]
            if members:
                self.server = self.models[cluster]
                self.models[cluster] = self.average(members)
        counts = [chosen.count(cluster) for cluster in range(self.clusters)]
        self.server = self.models[counts.index(max(counts))]

    def shared_with(self, client: int) -> State:
        return copy(self.models[self.chosen[client]]) if client in self.chosen else self.shown()


class Moreau(OwnModels, ServerSteps):
    """pFedMe: on each batch theta takes steps of F + lam/2 |theta - w|^2, then w one of lr lam (w - theta)."""

    lam = 2.0
    inner = passes = 2
    outer_lr = 0.1
    server_lr = 0.8

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        w = copy(received)
        theta = copy(received)
        optimizer = self.optimizer_of(training)
        rates = self.rates(training, self.steps_of(training))
        for places, lr in zip(training.batches[:: self.inner], rates, strict=True):
            x, y = rows(training.client, places)
            for _ in range(self.inner):
                gradient, new = self.gradient(theta, x, y, self.trained)
                for name in self.trained:
                    gradient[name] = gradient[name] + self.lam * (theta[name] - w[name])
                theta.update(new)
                optimizer.step(theta, gradient, lr)
            for name in self.trained:
                w[name] = w[name] - self.outer_lr * self.lam * (w[name] - theta[name])
        w.update(self.only(theta, self.buffers))
        self.own[training.client] = theta
        return w, rates

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        return self.server_lr * delta


class Mixture(OwnModels):
    """APFL: v takes a step along alpha grad F(alpha v + (1 - alpha) w), and w one along grad F(w)."""

    alpha = 0.4
    passes = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.mine: dict[int, State] = {}
        if self.keeps:
            raise MustRefuse("two models of a client step with one optimizer")

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        w = copy(received)
        v = copy(self.mine.get(training.client, self.first))
        at_w, at_v = SGD(self.kind), SGD(self.kind)
        rates = self.rates(training, self.steps_of(training))
        for places, lr in zip(training.batches[::2], rates, strict=True):
            x, y = rows(training.client, places)
            gradient, new = self.gradient(self.mix(v, w, self.trained), x, y, self.trained)
            w.update(new)
            of_w, new = self.gradient(w, x, y, self.trained)
            at_v.step(v, {name: self.alpha * value for name, value in gradient.items()}, lr)
            w.update(new)
            at_w.step(w, of_w, lr)
        # the own model has the buffers with which its training ended
        v.update(self.only(w, self.buffers))
        self.mine[training.client] = v
        return w, rates

    def mix(self, v: State, w: State, names: Sequence[str]) -> State:
        """Return a mean of two models; a model in training has its own buffers."""
        return {**w, **{name: self.alpha * v[name] + (1 - self.alpha) * w[name] for name in names}}

    def own_model(self, client: int) -> State:
        if client not in self.mine:
            return self.shown()
        return self.mix(self.mine[client], Referee.own_model(self, client), self.trained + self.buffers)


class Walking(Referee):
    """Takes steps along directions that are found in several passes."""

    passes = 2

    def direction(self, w: State, received: State, batches: list[tuple[Tensor, Tensor]]) -> State:
        """Return the direction of a step at a model, given the batches of all passes."""
        raise NotImplementedError

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        w = copy(received)
        optimizer = self.optimizer_of(training)
        rates = self.rates(training, self.steps_of(training))
        begins = range(0, len(training.batches), self.passes)
        for begin, lr in zip(begins, rates, strict=True):
            batches = [rows(training.client, places) for places in training.batches[begin : begin + self.passes]]
            optimizer.step(w, self.direction(w, received, batches), lr)
        return w, rates

    def gradient_at(self, there: State, w: State, batch: tuple[Tensor, Tensor]) -> State:
        """Return the gradient at a model; the client's model gets the new buffers."""
        gradient, new = self.gradient(there, *batch, self.trained)
        w.update(new)
        return gradient


class Meta(FineTuned, Walking):
    """Per-FedAvg, first order: w takes a step along the gradient of a second batch at w - alpha grad of a first one."""

    alpha = 0.05

    def direction(self, w: State, received: State, batches: list[tuple[Tensor, Tensor]]) -> State:
        inner, outer = batches
        gradient = self.gradient_at(w, w, inner)
        return self.gradient_at(self.moved(w, gradient, -self.alpha), w, outer)

    def tune(self, training: Training, received: State) -> State:
        """Take the steps of alpha for which the model was learnt, by plain SGD."""
        tuned = copy(received)
        for places in training.batches:
            gradient = self.gradient_at(tuned, tuned, rows(training.client, places))
            tuned = self.moved(tuned, gradient, -self.alpha)
        return tuned


class Contrast(Referee):
    """MOON, eq. (60): features are near the received model's, and far from the client's last model's."""

    mu = 0.9
    tau = 0.5

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.last: dict[int, State] = {}

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        former = self.last.get(training.client)

        def loss_on(x: Tensor) -> Loss:
            def loss(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
                value = self.loss(features, logits, y)
                if former is None:
                    return value
                near = F.cosine_similarity(features, forward(received, x, train=False)[0], dim=1)
                far = F.cosine_similarity(features, forward(former, x, train=False)[0], dim=1)
                both = torch.stack([near, far], dim=1) / self.tau
                return value + self.mu * (torch.logsumexp(both, 1) - both[:, 0]).mean()

            return loss

        trained, rates = self.sgd(training, received, loss=loss_on)
        self.last[training.client] = copy(trained)
        return trained, rates


def counts_of(client: int) -> Tensor:
    """Return how many samples of each class a client has."""
    return torch.bincount(TRAIN[client][1], minlength=4).double()


class Calibrated(Referee):
    """FedLC, eq. (61): the cross-entropy of f_c - tau n_c^(-1/4), over the classes that the client has."""

    tau = 0.9

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        shift = self.tau * counts_of(training.client) ** -0.25

        def loss(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
            return self.loss(features, logits - shift, y)

        return self.sgd(training, received, loss=lambda x: loss)


class NotTrue(Referee):
    """FedNTD, eq. (62): the softmax without the true class is drawn to the received model's."""

    beta = 0.8
    tau = 2.0

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        def loss_on(x: Tensor) -> Loss:
            def loss(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
                theirs = forward(received, x, train=False)[1] / self.tau
                true = F.one_hot(y, logits.shape[1]).bool()
                mine = (logits / self.tau).masked_fill(true, -torch.inf)
                log_q = mine - torch.logsumexp(mine, 1, keepdim=True)
                theirs = theirs.masked_fill(true, -torch.inf)
                log_p = theirs - torch.logsumexp(theirs, 1, keepdim=True)
                terms = (log_p.exp() * (log_p - log_q).masked_fill(true, 0.0)).masked_fill(true, 0.0)
                return self.loss(features, logits, y) + self.beta * self.tau**2 * terms.sum(1).mean()

            return loss

        return self.sgd(training, received, loss=loss_on)


class Decorrelated(Referee):
    """FedDecorr, eq. (63): the mean square of the features' correlation matrix costs."""

    beta = 0.3

    def loss(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The authors' code adds 1e-8 to variances."""
        scaled = (features - features.mean(0)) / (1e-8 + features.var(0)).sqrt()
        correlation = scaled.T @ scaled / (len(scaled) - 1)
        return super().loss(features, logits, y) + self.beta * correlation.square().mean()


class Sharpness(Walking):
    """FedSAM, eq. (64): a step has the gradient at w + rho g / |g|."""

    rho = 0.1

    def direction(self, w: State, received: State, batches: list[tuple[Tensor, Tensor]]) -> State:
        gradient = self.gradient_at(w, w, batches[0])
        uphill = self.moved(w, gradient, self.rho / flat(gradient, self.trained).norm())
        return self.gradient_at(uphill, w, batches[0])


class Prototypes(Referee):
    """FedProto, eq. (65): models are the clients' own, and features are drawn to the mean ones of their classes."""

    personal = ("*",)
    lam = 2.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.means = torch.full((4, 4), torch.nan, dtype=torch.float64)

    def play_round(self, number: int) -> None:
        self.sums = torch.zeros(4, 4, dtype=torch.float64)
        self.counts = torch.zeros(4, dtype=torch.float64)
        super().play_round(number)
        seen = self.counts > 0
        self.means = torch.where(seen[:, None], self.sums / self.counts[:, None], self.means)

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        sums = torch.zeros(4, 4, dtype=torch.float64)
        seen = torch.zeros(4, dtype=torch.float64)

        def loss(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
            sums.index_add_(0, y, features.detach())
            seen.index_add_(0, y, torch.ones(len(y), dtype=torch.float64))
            wanted = self.means[y]
            known = ~wanted.isnan()
            away = torch.where(known, features - torch.where(known, wanted, 0.0), 0.0).square()
            return self.loss(features, logits, y) + self.lam * away.mean()

        trained = self.sgd(training, received, loss=lambda x: loss)
        # means are over what the steps of the round saw
        self.sums += sums
        self.counts += seen
        return trained

    def play(self) -> Any:
        expected = super().play()
        expected.bytes_down = expected.bytes_up = None
        return expected


class TwoHeads(OwnModels):
    """Fed-RoD, eq. (66): logits + log n_c train the model; a head of the client's own learns what it adds."""

    head_lr = 0.3

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heads: dict[int, tuple[Tensor, Tensor]] = {}

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        prior = counts_of(training.client).log()
        zeros = torch.zeros(4, 4, dtype=torch.float64)
        self.heads.setdefault(training.client, (zeros, zeros[0]))

        def loss(features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
            weight, bias = (tensor.clone().requires_grad_() for tensor in self.heads[training.client])
            own = self.loss(features, logits.detach() + features.detach() @ weight.T + bias, y)
            of_weight, of_bias = torch.autograd.grad(own, [weight, bias])
            heads = (weight.detach() - self.head_lr * of_weight, bias.detach() - self.head_lr * of_bias)
            self.heads[training.client] = heads
            return self.loss(features, logits + prior, y)

        return self.sgd(training, received, loss=lambda x: loss)

    def own_model(self, client: int) -> State:
        state = Referee.own_model(self, client)
        if client in self.heads:
            weight, bias = self.heads[client]
            state["head.weight"] = state["head.weight"] + weight
            state["head.bias"] = state["head.bias"] + bias
        return state


class Dynamic(ServerSteps):
    """FedDyn, eq. (9)-(12), with lambda_k = -g_k / alpha_k."""

    alpha = 0.1
    uniform = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        zero = {name: torch.zeros_like(self.first[name]) for name in self.travels}
        self.duals = {client: copy(zero) for client in self.clients}

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        client = training.client
        alpha = self.alpha * sum(SIZES) / (SIZES[client] * len(SIZES))

        def added(state: State) -> State:
            terms = {name: alpha * (state[name] - received[name]) for name in self.trained}
            for name in self.travels:
                terms[name] = terms[name] + alpha * self.duals[client][name]
            return terms

        trained, rates = self.sgd(training, received, added=added)
        for name in self.travels:
            self.duals[client][name] = self.duals[client][name] + trained[name] - received[name]
        return trained, rates

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        return delta + sum(flat(dual, self.travels) for dual in self.duals.values()) / len(SIZES)


class Scaffold(Referee):
    """SCAFFOLD, eq. (13)-(16), option 2; momentum lengthens the reach of the steps."""

    uniform = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        zero = {name: torch.zeros_like(self.first[name]) for name in self.travels}
        self.variates = {client: copy(zero) for client in self.clients}
        self.new: dict[int, State] = {}

    def play_round(self, number: int) -> None:
        self.new = {}
        super().play_round(number)
        self.variates.update(self.new)

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        client = training.client
        c = {name: sum(each[name] for each in self.variates.values()) / len(SIZES) for name in self.travels}
        mine = self.variates[client]
        trained, rates = self.sgd(
            training, received, added=lambda state: {name: c[name] - mine[name] for name in self.travels}
        )
        reach = way(rates, self.kind.momentum)
        self.new[client] = {
            name: mine[name] - c[name] + (received[name] - trained[name]) / reach for name in self.travels
        }
        self.bits_down += 64 * self.count(self.travels)
        self.bits_up += 64 * self.count(self.travels)
        return trained, rates


def way(rates: list[float], momentum: float) -> float:
    """Return how far SGD with momentum gets along a constant gradient of length 1."""
    velocity = 0.0
    reach = 0.0
    for lr in rates:
        velocity = momentum * velocity + 1
        reach += lr * velocity
    return reach


class Nova(ServerSteps):
    """FedNova, eq. (58): w + tau sum p_k delta_k / |a_k|, tau = sum p_k |a_k|."""

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        total = sum(SIZES[report.client] for report in reports)
        tau: Any = 0.0
        move: Any = 0.0
        for report in reports:
            share = SIZES[report.client] / total
            reach = way([1.0] * len(report.rates), self.kind.momentum)
            tau += share * reach
            move = move + share * self.update(report) / reach
        return tau * move


class Fair(ServerSteps):
    """q-FedAvg, eq. (59), with L the inverse of the learning rate."""

    q = 0.5

    def visit(self, training: Training, received: State | None = None) -> Report:
        report = super().visit(training, received)
        report.loss = self.risk(report.received, training.client)
        self.bits_up += 64
        return report

    def weights_of(self, reports: list[Report]) -> list[float]:
        return [report.loss**self.q for report in reports]

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        top: Any = 0.0
        bottom = 0.0
        for report, power in zip(reports, self.weights_of(reports), strict=True):
            d = -self.update(report) / LR
            top = top + power * d
            bottom += self.q * report.loss ** (self.q - 1) * float(d.square().sum()) + power / LR
        return -top / bottom


class Extrapolated(ServerSteps):
    """FedExP, eq. (83): a step along the mean update, which is the longer, the more updates differ."""

    epsilon = 1e-6
    uniform = True

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        updates = torch.stack([self.update(report) for report in reports])
        together = updates.mean(0)
        squares = float(updates.square().sum()) / len(updates)
        return max(1.0, squares / (2 * (float(together.square().sum()) + self.epsilon))) * together


class Remembered(ServerSteps):
    """MIFA, eq. (84), (85), at a learning rate that is the same in all rounds."""

    uniform = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gradients: dict[int, Tensor] = {}

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        for report in reports:
            self.gradients[report.client] = -self.update(report) / LR
        return -LR * sum(self.gradients.values()) / len(SIZES)


class Mimic(Walking):
    """Mime with momentum, eq. (86)-(88): s stays as it is in a round, and gradients are corrected."""

    beta = 0.9
    corrected = True
    uniform = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.kept:
            raise MustRefuse("s and c are of the whole model")
        self.s = {name: torch.zeros_like(self.first[name]) for name in self.travels}
        self.c = copy(self.s)

    def play_round(self, number: int) -> None:
        trainings = self.of_phase(number, 0)
        received = {training.client: self.receive(training.client) for training in trainings}
        self.held = {}
        gradients = [self.full_gradient(state, client) for client, state in received.items()]
        self.c = mean(gradients, [1.0] * len(gradients))
        reports = [self.visit(training, received[training.client]) for training in trainings]
        size = 64 * self.count(self.travels) * len(reports)
        self.bits_down += size * (2 if self.corrected else 1)
        self.bits_up += size
        self.server = self.average(reports)
        for name in self.travels:
            self.s[name] = (1 - self.beta) * self.c[name] + self.beta * self.s[name]

    def full_gradient(self, state: State, client: int) -> State:
        x, y = TRAIN[client]
        leaves = {name: tensor.detach().clone() for name, tensor in state.items()}
        for name in self.travels:
            leaves[name].requires_grad_()
        total: Any = 0.0
        for inputs, targets in zip(x.split(BATCH_SIZE), y.split(BATCH_SIZE), strict=True):
            features, logits, _ = forward(leaves, inputs, train=False)
            total = total + len(targets) / len(y) * self.loss(features, logits, targets)
        gradients = torch.autograd.grad(total, [leaves[name] for name in self.travels])
        return dict(zip(self.travels, gradients, strict=True))

    def direction(self, w: State, received: State, batches: list[tuple[Tensor, Tensor]]) -> State:
        g = self.gradient_at(w, w, batches[0])
        if self.corrected:
            at_x = self.gradient_at({**w, **self.only(received, self.trained)}, w, batches[0])
            g = {name: g[name] - at_x[name] + self.c[name] for name in self.trained}
        return {name: (1 - self.beta) * g[name] + self.beta * self.s[name] for name in self.trained}


class MimicLite(Mimic):
    """MimeLite: without the correction."""

    corrected = False
    passes = 1


class Narrow(Referee):
    """HeteroFL, eq. (91), (94): clients train small networks, and values are means over the clients that have them."""

    widths = (1.0, 0.5, 0.75)
    uniform = True
    #: The dimensions of hidden units.
    shrinking: ClassVar[Mapping[str, int]] = {
        **dict.fromkeys(("body.weight", "body.bias", "norm.weight", "norm.bias", *BUFFERS), 0),
        "head.weight": 1,
    }

    def cut(self, state: State, width: float) -> State:
        """Return the leading units of a model, as tensors that are really smaller."""
        small = copy(state)
        for name, dim in self.shrinking.items():
            if name in state and state[name].dim():
                small[name] = state[name].narrow(dim, 0, math.ceil(width * WIDTH)).clone()
        return small

    def placed(self, name: str, tensor: Tensor) -> Tensor:
        """Return a small tensor as a large one, with zeros in the new places."""
        large = torch.zeros_like(self.first[name])
        large[tuple(slice(size) for size in tensor.shape)] = tensor
        return large

    def padded(self, state: State) -> State:
        return {name: self.placed(name, tensor) for name, tensor in state.items()}

    def width(self, client: int) -> float:
        return self.widths[client % len(self.widths)]

    def count(self, names: Sequence[str]) -> int:
        small = self.cut(self.first, self.width(self.at))
        return sum(small[name].numel() for name in names)

    def receive(self, client: int, model: State | None = None, link: int = 0) -> State:
        self.at = client
        received = super().receive(client, model, link)
        if client in self.received:
            self.received[client] = self.cut(self.received[client], self.width(client))
        return self.cut(received, self.width(client))

    def send(self, client: int, received: State, trained: State) -> State:
        self.at = client
        return super().send(client, received, trained)

    def average(self, reports: list[Report]) -> State:
        merged = copy(self.server)
        weights = self.weights_of(reports)
        for name in self.travels + self.buffers:
            total: Any = 0.0
            shares: Any = 0.0
            for weight, report in zip(weights, reports, strict=True):
                total = total + weight * self.placed(name, report.sent[name]).double()
                shares = shares + weight * self.placed(name, torch.ones_like(report.sent[name])).double()
            merged[name] = torch.where(shares > 0, total / shares.clamp(min=1e-9), merged[name].double())
        return self.typed(merged)

    def shown(self) -> State:
        small = self.values
        self.values = {client: self.padded(values) for client, values in small.items()}
        shown = super().shown()
        self.values = small
        return shown

    def own_model(self, client: int) -> State:
        return self.cut(super().own_model(client), self.width(client))


class OrderedSteps(Narrow):
    """FjORD, eq. (93), (94): each step has the gradient of a width that is drawn up to the client's own."""

    uniform = False

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        state = copy(received)
        optimizer = self.optimizer_of(training)
        rates = self.rates(training, len(training.batches))
        widths = [width for width in self.widths if width <= self.width(training.client)]
        seeds = [training.round, training.client] + [training.repetition] * (training.repetition > 0)
        generator = torch_generator(1, Stream.PARTS, *seeds)
        for places, lr in zip(training.batches, rates, strict=True):
            width = widths[int(torch.randint(len(widths), (), generator=generator))]
            small = self.cut(state, width)
            gradient, _ = self.gradient(small, *rows(training.client, places), self.trained)
            optimizer.step(state, self.cut(self.padded(gradient), self.width(training.client)), lr)
        return state, rates


class Ranks(Narrow):
    """FedLoRA, eq. (79), of unequal ranks: adapters are really smaller, and means are over those that have a rank."""

    widths = (2.0, 1.0, 2.0)
    uniform = False

    def __init__(self, fitted: Any, kind: Kind, options: Any) -> None:
        first = tensors_of(with_adapters(Net(kind)))
        super().__init__(replace(fitted, first=first), kind, options)
        self.trained = [name for name in self.trained if "lora_" in name]
        self.kept = [name for name in self.kept if name in self.trained + self.buffers]
        self.travels = [name for name in self.trained if name not in self.kept]

    def cut(self, state: State, width: float) -> State:
        small = copy(state)
        for name, tensor in state.items():
            if name.endswith("lora_A"):
                small[name] = tensor[: int(width)].clone()
            elif name.endswith("lora_B"):
                small[name] = tensor[:, : int(width)].clone()
        return small

    def network(self, state: State) -> State:
        """Return the network without adapters that computes the same."""
        plain = {name.replace(".layer.", "."): tensor for name, tensor in state.items() if "lora_" not in name}
        if "head.weight" not in plain:
            plain["head.weight"] = plain["middle.weight"]
        for name in state:
            if name.endswith("lora_A"):
                layer = name.removesuffix(".lora_A")
                product = state[f"{layer}.lora_B"] @ state[name]
                plain[f"{layer}.weight"] = plain[f"{layer}.weight"] + product
        return plain


class Stacks(Ranks):
    """FLoRA, eq. (99): the mean of the products goes into the frozen weights, and adapters begin anew."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.kind.tied:
            raise MustRefuse("two layers would change together")
        self.layers = [name.removesuffix(".lora_A") for name in self.travels if name.endswith("lora_A")]
        self.sizes: list[int] = []
        self.known: dict[int, int] = {}

    def receive(self, client: int, model: State | None = None, link: int = 0) -> State:
        before = self.bits_down
        received = super().receive(client, model, link)
        if self.sizes and self.bits_down > before:
            dense = sum(self.first[f"{layer}.layer.weight"].numel() for layer in self.layers)
            stacks = sum(self.sizes[self.known.get(client, 0) :])
            self.bits_down += 64 * (min(dense, stacks) - self.count(self.travels))
        self.known[client] = len(self.sizes)
        return received

    def merge(self, reports: list[Report]) -> None:
        merged = self.average(reports)
        weights = self.weights_of(reports)
        size = 0
        for place, layer in enumerate(self.layers):
            a, b = f"{layer}.lora_A", f"{layer}.lora_B"
            products = [weight * r.sent[b] @ r.sent[a] for weight, r in zip(weights, reports, strict=True)]
            merged[f"{layer}.layer.weight"] = merged[f"{layer}.layer.weight"] + sum(products) / sum(weights)
            size += sum(report.sent[name].numel() for report in reports for name in (a, b))
            generator = torch_generator(1, Stream.PARTS, place, self.round, len(SIZES))
            drawn = torch.rand(merged[a].shape, generator=generator, dtype=torch.float64)
            merged[a] = (2 * drawn - 1) / merged[a].shape[1] ** 0.5
            merged[b] = torch.zeros_like(merged[b])
        self.sizes.append(size)
        self.server = merged


def with_adapters(module: Net) -> Net:
    """Add adapters of rank 2, whose factors are both not 0, to the linear layers."""
    add_lora(module, rank=2)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in module.named_parameters():
        if "lora_" in name:
            parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


class AdaptedNet(fl.FedLoRA):
    """FedLoRA, which adds the adapters."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            with_adapters(pl_module)
        super().setup(trainer, pl_module, stage)


class NarrowWithCentre(fl.HeteroFL):
    """HeteroFL that knows of the module's own buffer."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if hasattr(pl_module, "centre"):
            self.algorithm.objective.partial.hidden = {"centre": 0}
        super().setup(trainer, pl_module, stage)


def narrow_parts(objective: Any, weighting: Any) -> dict[str, Any]:
    held = parts.SubModels(Narrow.widths)
    return {"exchange": [held], "objective": objective(held), "aggregation": parts.HolderMean(held, weighting)}


class Outer(ServerSteps):
    """DiLoCo, eq. (81), (82): inner optimizers go on, and the outer one is SGD with Nesterov momentum."""

    always_kept = True
    uniform = True
    outer_lr = 0.7
    beta = 0.9
    velocity: Any = 0.0

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        self.velocity = self.beta * self.velocity - delta
        return -self.outer_lr * (self.beta * self.velocity - delta)


class ServerMomentum(ServerSteps):
    """FedAvgM, eq. (21)."""

    m: Any = 0.0

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        self.m = 0.9 * self.m + delta
        return self.m


class ServerAdagrad(ServerSteps):
    """FedAdagrad, eq. (17)-(20), without a first moment."""

    v: Any = 0.0

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        self.v = self.v + delta**2
        return 0.1 * delta / (self.v.sqrt() + 1e-3)


class ServerAdam(ServerSteps):
    """FedAdam, eq. (17)-(20)."""

    m: Any = 0.0
    v: Any = 0.0

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        self.m = 0.9 * self.m + 0.1 * delta
        self.v = self.second(delta**2)
        return 0.01 * self.m / (self.v.sqrt() + 1e-3)

    def second(self, square: Tensor) -> Tensor:
        return 0.99 * self.v + 0.01 * square


class ServerYogi(ServerAdam):
    """FedYogi."""

    def second(self, square: Tensor) -> Tensor:
        return self.v - 0.01 * square * torch.sign(self.v - square)


class Async(Referee):
    """FedAsync, eq. (23)-(25): each result is mixed in by 0.6 / sqrt(1 + d)."""

    asynchronous = True
    buffer_size = 1
    rho = 0.5

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        return self.sgd(training, received, centre=received, mu=self.rho)

    def merge(self, reports: list[Report]) -> None:
        [report] = reports
        share = 0.6 / (1 + report.staleness) ** 0.5
        self.server = self.mean_of([self.server, report.sent], [1 - share, share])


class Buff(ServerSteps):
    """FedBuff, eq. (27)-(29): w + sum s(d) delta / K, s(d) = 1 / sqrt(1 + d)."""

    asynchronous = True

    def weights_of(self, reports: list[Report]) -> list[float]:
        return [(1 + report.staleness) ** -0.5 for report in reports]

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        moves = [s * self.update(report) for s, report in zip(self.weights_of(reports), reports, strict=True)]
        return sum(moves) / len(reports)


class DynamicBuff(ServerSteps):
    """Gao et al. 2024, eq. (30)-(33): x + alpha (sum beta_b x_b - x), beta_b in proportion to n e^(s_b / f_b)."""

    asynchronous = True
    alpha = 0.5
    mu = 0.2

    def local_training(self, training: Training, received: State) -> tuple[State, list[float]]:
        return self.sgd(training, received, centre=received, mu=self.mu)

    def counter(self) -> int:
        return self.arrived

    def weights_of(self, reports: list[Report]) -> list[float]:
        clients = [report.client for report in reports]
        weights = []
        for report in reports:
            staleness = (1 + report.staleness) ** -self.alpha
            weights.append(SIZES[report.client] * math.exp(staleness / clients.count(report.client)))
        return weights

    def step(self, delta: Tensor, reports: list[Report]) -> Tensor:
        return self.alpha * delta


class ShowsMean(Referee):
    """A method that shows the mean of the models under way between two aggregations."""

    def merged(self) -> State:
        """Return the mean, or the server's model if no model is under way."""
        raise NotImplementedError

    def shown(self) -> State:
        server = self.server
        self.server = self.merged()
        shown = super().shown()
        self.server = server
        return shown


class Circulating(ShowsMean):
    """RADFed, eq. (35)-(37), with two local trainings a cycle; between aggregations the mean is shown."""

    redistributions = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.models = self.copies()

    def copies(self) -> list[State]:
        return [copy(self.server) for _ in self.of_phase(0, 0)]

    def play_round(self, number: int) -> None:
        for training in self.of_phase(number, 0):
            received = self.receive(training.client, self.models[training.slot])
            trained, _ = self.local_training(training, received)
            self.models[training.slot] = self.send(training.client, received, trained)
        if (number + 1) % self.redistributions == 0:
            self.server = self.merged()
            self.models = self.copies()

    def merged(self) -> State:
        return self.mean_of(self.models, [1.0] * len(self.models))


PUBLIC = torch.randn(10, FEATURES, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
BATCHES = DataLoader(PUBLIC, 4)


class Distilled(Referee):
    """FedDF, eq. (95), (96), by SGD: the mean takes steps towards the mean logits of the clients' models."""

    steps = 5
    lr = 0.5
    given: ClassVar[Any] = {"loader": BATCHES, "steps": steps, "lr": lr, "optimizer": torch.optim.SGD}

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.kept or self.options.buffers == "local":
            raise MustRefuse("the server does not have the clients' whole models")

    def merge(self, reports: list[Report]) -> None:
        student = self.average(reports)
        batches = [PUBLIC[:4], PUBLIC[4:8], PUBLIC[8:], PUBLIC[:4], PUBLIC[4:8]]
        for step, x in enumerate(batches):
            logits = torch.stack([forward(report.sent, x, train=False)[1] for report in reports]).mean(0)
            wanted = logits.exp() / logits.exp().sum(1, keepdim=True)
            leaves = {name: student[name].clone().requires_grad_() for name in self.trained}
            mine = forward({**student, **leaves}, x, train=False)[1]
            log_q = mine - torch.logsumexp(mine, 1, keepdim=True)
            loss = (wanted * (wanted.log() - log_q)).sum(1).mean()
            rate = type(self).lr / 2 * (1 + math.cos(math.pi * step / self.steps))
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            student = self.moved(student, dict(zip(leaves, gradients, strict=True)), -rate)
        self.server = student


class Agreeing(Referee):
    """FedMD, eq. (97), (98), by SGD: models are the clients' own, and digest the mean of all class scores."""

    personal = ("*",)
    lr = 0.5

    given: ClassVar[Any] = {"batches": 2, "digestions": 2, "lr": lr, "optimizer": torch.optim.SGD}

    def play_round(self, number: int) -> None:
        trainings = self.of_phase(number, 0)
        have_trained = any(training.client in self.values for training in trainings)
        received = {training.client: self.receive(training.client) for training in trainings}
        lessons = []
        for x in (PUBLIC[:4], PUBLIC[4:8]):
            scores = [forward(model, x, train=False)[1] for model in received.values()]
            lessons.append((x, torch.stack(scores).mean(0)))
        numbers = sum(wanted.numel() for _, wanted in lessons) * len(trainings)
        self.bits_down += 64 * numbers
        self.bits_up += 64 * numbers
        reports = []
        for training in trainings:
            client = training.client
            start = self.digest(received[client], lessons * 2) if have_trained else received[client]
            trained, rates = self.sgd(training, start, centre=received[client])
            reports.append(self.report(client, received[client], trained, rates))
        self.held = {}
        self.merge(reports)

    def digest(self, model: State, lessons: list[tuple[Tensor, Tensor]]) -> State:
        for x, wanted in lessons:
            leaves = {name: model[name].clone().requires_grad_() for name in self.trained}
            loss = (forward({**model, **leaves}, x, train=False)[1] - wanted).abs().mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            model = self.moved(model, dict(zip(leaves, gradients, strict=True)), -type(self).lr)
        return model


class Hierarchy(ShowsMean):
    """HierFAVG, eq. (89), (90): regional models are means of their clients', and the server's the mean of them."""

    groups = ((0, 3), (1, 2))
    inner_rounds = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.models: dict[tuple[int, ...], State] = {}

    def group_of(self, client: int) -> tuple[int, ...]:
        [group] = [group for group in self.groups if client in group]
        return group

    def receive(self, client: int, model: State | None = None, link: int = 0) -> State:
        if client in self.held:
            return self.held.pop(client)
        region = self.models.get(self.group_of(client), self.server)
        return super().receive(client, self.typed(region), link)

    def play_round(self, number: int) -> None:
        reports = [self.visit(training) for training in self.of_phase(number, 0)]
        for group in self.groups:
            members = [report for report in reports if report.client in group]
            if members:
                # counters of a region need not be whole numbers
                sent = [{name: tensor.double() for name, tensor in report.sent.items()} for report in members]
                self.models[group] = self.mean_of(sent, self.weights_of(members))
        if (number + 1) % self.inner_rounds == 0:
            self.server = self.merged()
            self.models = {}

    def merged(self) -> State:
        if not self.models:
            return self.server
        weights = [float(sum(SIZES[client] for client in group)) for group in self.models]
        return self.typed(self.mean_of(list(self.models.values()), weights))


@dataclass(frozen=True)
class Method:
    """A method of the library and its referee.

    Attributes:
        named: Makes the named callback; the options are those of every callback.
        referee: Says what it must compute.
        parts: The same as options of ``Federated``, if it can be written so.
        one_model: Whether the server has one model, at which a sampler can ask clients for a score.
        knows_momentum: Whether it is told the momentum of the clients' optimizer.
        needs_norm: Whether the module must have BatchNorm.
        takes_module: Whether both take a module of the set-up, whose weights have no use.
    """

    named: Callable[..., fl.AggregationCallback]
    referee: type[Referee]
    parts: Callable[..., Mapping[str, Any]] | None = None
    knows_momentum: bool = False
    one_model: bool = True
    needs_norm: bool = False
    takes_module: bool = False


METHODS: dict[str, Method] = {
    "FedAvg": Method(fl.FedAvg, Referee, dict),
    "FedProx": Method(lambda **k: fl.FedProx(MU, **k), Proximal, lambda: {"objective": parts.Proximal(MU)}),
    "FedDyn": Method(lambda **k: fl.FedDyn(Dynamic.alpha, **k), Dynamic),
    "Scaffold": Method(lambda momentum=0.0, **k: fl.Scaffold(momentum=momentum, **k), Scaffold, knows_momentum=True),
    "FedNova": Method(lambda momentum=0.0, **k: fl.FedNova(momentum=momentum, **k), Nova, knows_momentum=True),
    "FedExP": Method(
        lambda **k: fl.FedExP(epsilon=Extrapolated.epsilon, **k), Extrapolated,
        lambda: {"aggregation": parts.ExtrapolatedMean(Extrapolated.epsilon)},
    ),
    "MIFA": Method(fl.MIFA, Remembered),
    "HeteroFL": Method(
        lambda **k: NarrowWithCentre(Narrow.widths, **k), Narrow,
        lambda: narrow_parts(parts.HeldGradients, "uniform"),
    ),
    "FjORD": Method(
        lambda **k: fl.FjORD(Narrow.widths, **k), OrderedSteps,
        lambda: narrow_parts(parts.OrderedDropout, "samples"),
    ),
    "FLoRA": Method(lambda **k: AdaptedNet("stack", ranks=[2, 1, 2], **k), Stacks),
    "FedLoRA": Method(lambda **k: AdaptedNet("average", ranks=[2, 1, 2], padding="counts", **k), Ranks),
    "DiLoCo": Method(
        lambda **k: fl.DiLoCo(**{"local_steps": None, "continue_epochs": False, **k}), Outer,
        lambda: {
            "aggregation": parts.WeightedMean("uniform"),
            "server": parts.TorchServer(torch.optim.SGD, 0.7, momentum=0.9, nesterov=True),
        },
    ),
    "Mime": Method(fl.Mime, Mimic),
    "MimeLite": Method(fl.MimeLite, MimicLite),
    "FedAvgM": Method(lambda **k: fl.FedAvgM(0.9, **k), ServerMomentum, lambda: {"server": parts.Momentum(0.9)}),
    "FedAdagrad": Method(fl.FedAdagrad, ServerAdagrad, lambda: {"server": parts.Adaptive("adagrad")}),
    "FedAdam": Method(fl.FedAdam, ServerAdam, lambda: {"server": parts.Adaptive("adam")}),
    "FedYogi": Method(fl.FedYogi, ServerYogi, lambda: {"server": parts.Adaptive("yogi")}),
    "QFedAvg": Method(lambda **k: fl.QFedAvg(Fair.q, **k), Fair),
    "RADFed": Method(lambda **k: fl.RADFed(2, **k), Circulating),
    "FedDF": Method(
        lambda module, **k: fl.FedDF(module, **Distilled.given, **k),
        Distilled,
        lambda module=None: {
            "aggregation": parts.EnsembleDistillation(module or Net(Kind()), **Distilled.given)
        },
        takes_module=True,
    ),
    "FedMD": Method(lambda module, **k: fl.FedMD(module, BATCHES, **Agreeing.given, **k), Agreeing, takes_module=True),
    "HierFAVG": Method(
        lambda **k: fl.HierFAVG(Hierarchy.groups, Hierarchy.inner_rounds, **k), Hierarchy,
        lambda: {"schedule": parts.Hierarchical(Hierarchy.groups, Hierarchy.inner_rounds)},
    ),
    "FedAsync": Method(lambda **k: fl.FedAsync(rho=Async.rho, speeds=SPEEDS, **k), Async),
    "FedBuff": Method(lambda **k: fl.FedBuff(2, speeds=SPEEDS, **k), Buff),
    "DynamicWeightFedBuff": Method(
        lambda **k: fl.DynamicWeightFedBuff(2, speeds=SPEEDS, mu=DynamicBuff.mu, **k), DynamicBuff
    ),
    "Local": Method(fl.Local, Alone, lambda: {"exchange": [parts.PersonalParameters("*")]}),
    "FedAvgFineTuned": Method(
        lambda **k: fl.FedAvgFineTuned(every=2, **k), FineTuned, lambda: {"schedule": parts.FineTuning(every=2)}
    ),
    "Ditto": Method(lambda **k: fl.Ditto(LAM, **k), Ditto, lambda: {"schedule": parts.ProximalModels(lam=LAM)}),
    "FedPer": Method(
        lambda **k: fl.FedPer("head", **k), Personal, lambda: {"exchange": [parts.PersonalParameters("head")]}
    ),
    "FedRep": Method(lambda **k: fl.FedRep("head", head_epochs=1, **k), Rep),
    "FedBABU": Method(lambda **k: fl.FedBABU("head", every=2, fine_tune_epochs=1, **k), BABU),
    "LGFedAvg": Method(
        lambda **k: fl.LGFedAvg("body", **k), LG, lambda: {"exchange": [parts.PersonalParameters("body")]}
    ),
    "FedBN": Method(
        lambda **k: fl.FedBN("norm", **k), BN, lambda: {"exchange": [parts.PersonalParameters("norm")]}, needs_norm=True
    ),
    "FedALA": Method(
        lambda **k: fl.FedALA("head", share_lr=ALA.share_lr, **k), ALA,
        lambda: {"schedule": parts.AdaptiveStart(mixed="head", lr=ALA.share_lr)},
    ),
    "IFCA": Method(
        lambda **k: fl.IFCA(IFCA.clusters, **k), IFCA,
        lambda: {"schedule": parts.Clusters(number=IFCA.clusters)},
        one_model=False,
    ),
    "PFedMe": Method(
        lambda **k: fl.PFedMe(
            Moreau.lam, inner_steps=Moreau.inner, lr=Moreau.outer_lr, server_lr=Moreau.server_lr, **k
        ), Moreau,
        lambda: {
            "objective": parts.MoreauEnvelope(Moreau.lam, Moreau.inner, Moreau.outer_lr),
            "server": parts.Mixing(Moreau.server_lr),
        },
    ),
    "APFL": Method(
        lambda **k: fl.APFL(Mixture.alpha, **k), Mixture, lambda: {"objective": parts.ModelMixture(Mixture.alpha)}
    ),
    "PerFedAvg": Method(lambda **k: fl.PerFedAvg(Meta.alpha, every=2, **k), Meta),
    "MOON": Method(
        lambda **k: fl.MOON(Contrast.mu, tau=Contrast.tau, **k), Contrast,
        lambda: {"objective": parts.ModelContrast(Contrast.mu, Contrast.tau)},
    ),
    "FedLC": Method(
        lambda **k: fl.FedLC(Calibrated.tau, **k), Calibrated,
        lambda: {"objective": parts.CalibratedLogits(Calibrated.tau)},
    ),
    "FedNTD": Method(
        lambda **k: fl.FedNTD(NotTrue.beta, tau=NotTrue.tau, **k), NotTrue,
        lambda: {"objective": parts.NotTrueDistillation(NotTrue.beta, NotTrue.tau)},
    ),
    "FedDecorr": Method(
        lambda **k: fl.FedDecorr(Decorrelated.beta, **k), Decorrelated,
        lambda: {"objective": parts.Decorrelation(Decorrelated.beta)},
    ),
    "FedSAM": Method(
        lambda **k: fl.FedSAM(Sharpness.rho, **k), Sharpness, lambda: {"objective": parts.SharpnessAware(Sharpness.rho)}
    ),
    "FedProto": Method(lambda **k: fl.FedProto(Prototypes.lam, **k), Prototypes),
    "FedRoD": Method(
        lambda **k: fl.FedRoD("head", head_lr=TwoHeads.head_lr, **k), TwoHeads,
        lambda: {"objective": parts.TwoHeads("head", TwoHeads.head_lr)},
    ),
}  # fmt: skip
