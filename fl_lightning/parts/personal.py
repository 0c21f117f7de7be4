"""Models of single clients: what each one trains beside, before or instead of the server's model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fl_lightning.checks import Count, NotNegative, Positive, ScheduledWeight, check_fields
from fl_lightning.parts.aggregation import RunningMean, Weighting  # noqa: F401 (in inherited fields)
from fl_lightning.parts.exchange import PersonalParameters, as_patterns
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.objectives import Correction, LocalObjective
from fl_lightning.parts.part import walk
from fl_lightning.parts.schedules import EvaluatedModel, Play, Schedule, Synchronous  # noqa: F401 (likewise)
from fl_lightning.parts.server import Server

Patterns = str | Sequence[str]


def further(tasks: Iterable[Task], work: int | None = None, phase: int = 1) -> list[Task]:
    """Return the tasks of a further training of the same clients, with other work if it is given."""
    return [replace(task, phase=phase, work=task.work if work is None else work) for task in tasks]


def places(federation: Federation, patterns: Patterns, argument: str) -> frozenset[int]:
    """Return the places of the parameter tensors whose names match the patterns."""
    names = set(federation.matching(as_patterns(argument, patterns), argument))
    return frozenset(place for place, name in enumerate(federation.names[: len(federation.lengths)]) if name in names)


# ---- schedules: further trainings of a round's clients ----


class _OwnModels(Synchronous):
    """Synchronous rounds in which each client also keeps a whole model of its own, at first the server's first one."""

    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        super().setup(federation)
        self.add_client_vectors("own", federation.model)

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the client's own model."""
        return self.own.get(client)


@dataclass(eq=False, kw_only=True)
class ProximalModels(_OwnModels):
    """Each client also trains a model of its own, drawn to the server's (Ditto, Li et al. 2021).

    The client's model v_k minimises ``F_k(v) + lam/2 |v - w_t|^2``, from where it was, with w_t the model that the
    round began with. With ``lam=0`` it is local training.

    Args:
        lam: Weight of the proximal term, at least 0; a function of the round makes a schedule.
        epochs: Local epochs (or steps, if the algorithm counts steps) of the own model; ``None``: as the server's.

    Attributes:
        own: Every client's model, at first the server's first one.
    """

    lam: ScheduledWeight = 1.0
    epochs: Count | None = None

    def start(self, task: Task, server: Server) -> Tensor:
        """Return the client's own model in its further training."""
        return self.own[task.client] if task.phase else server.model

    def correction(self, client: LocalClient) -> Correction:
        """Return ``lam/2 |v - w_t|^2``, whose centre is not the model that the client starts from."""
        n, lam = self.federation.num_parameters, self.at("lam")
        return Correction(pull=lam, linear=lam * (client.start[:n] - self._center[:n]))

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Train the server's model, then each client's."""
        self._center = server.model
        shown = yield from super().play(tasks, server)
        for result in (yield further(tasks, self.epochs)):
            self.own[result.client] = result.vector
        return shown

    def expected_tasks(self) -> int:
        """Return the number of further trainings."""
        return self.cohort_size


@dataclass(eq=False, kw_only=True)
class PersonalFirst(Synchronous):
    """Clients first train their personal parameters, the others frozen, then the others (FedRep, Collins et al. 2021).

    Use it with ``Frozen`` of the same parameters as the objective of the second training.

    Args:
        personal_parameters: The exchange that keeps them, which must be one of the algorithm's.
        epochs: Local epochs (or steps, if the algorithm counts steps) of the first training.
    """

    personal_parameters: PersonalParameters
    epochs: Count = 1

    def check_with(self, algorithm: Any) -> None:
        """Raise ``ValueError`` if the algorithm's exchange lacks the personal parameters."""
        if all(part is not self.personal_parameters for part in walk(algorithm.exchange)):
            raise ValueError(
                f"`personal_parameters` must be one of the algorithm's exchanges, got {self.personal_parameters!r} and "
                f"{algorithm.exchange!r}. Give the same object as `exchange`."
            )

    def start(self, task: Task, server: Server) -> Tensor:
        """Return the server's model with the client's personal parameters in the first training."""
        return self.personal_parameters.download(task, server.model) if task.phase else server.model

    def correction(self, client: LocalClient) -> Correction:
        """Freeze all but the personal parameters."""
        trained = places(self.federation, self.personal_parameters.pattern, "personal_parameters")
        return Correction(frozen=frozenset(range(len(self.federation.lengths))) - trained)

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Train the personal parameters, then the others."""
        for result in (yield further(tasks, self.epochs)):
            self.personal_parameters.keep(result)
        return (yield from super().play(tasks, server))

    def expected_tasks(self) -> int:
        """Return the number of first trainings."""
        return self.cohort_size


@dataclass(eq=False, kw_only=True)
class FineTuning(_OwnModels):
    """In some rounds all clients fine-tune the server's new model on their own data; the server never sees that.

    FedAvg with fine-tuning is the baseline of personal models (Cheng et al. 2021). After FedBABU only the head that was
    frozen may be tuned, or the whole model.

    Args:
        every: Number of rounds between two fine-tunings; the last round of a fit whose length is known has one, too.
        epochs: Local epochs (or steps, if the algorithm counts steps) of fine-tuning.
        frozen: Parameters that are left as they are; patterns as for :class:`PersonalParameters`. ``None``: none.

    Attributes:
        own: Every client's tuned model.
    """

    every: Count = 1
    epochs: Count = 1
    frozen: Patterns | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        self.frozen = None if self.frozen is None else as_patterns("frozen", self.frozen)

    def setup(self, federation: Federation) -> None:
        """Find what is not tuned."""
        super().setup(federation)
        self._frozen = frozenset() if self.frozen is None else places(federation, self.frozen, "frozen")

    def correction(self, client: LocalClient) -> Correction | None:
        """Freeze what is not tuned."""
        return Correction(frozen=self._frozen) if self._frozen else None

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Play the round, and fine-tune if it is time."""
        shown = yield from super().play(tasks, server)
        if self._tunes:
            for result in (yield self._tunings()):
                self.own[result.client] = result.vector
        return shown

    @property
    def _tunes(self) -> bool:
        return (self.round + 1) % self.every == 0 or self.round + 1 == self.federation.max_rounds

    def _tunings(self) -> list[Task]:
        sizes = enumerate(self.federation.sizes)
        return [Task(k, k, int(size), self.epochs, self.round, phase=1) for k, size in sizes]

    def expected_tasks(self) -> int:
        """Return the number of fine-tunings in the round."""
        return self.federation.num_clients if self._tunes else 0


@dataclass(eq=False, kw_only=True)
class AdaptiveStart(_OwnModels):
    """Clients start from a learnt mix of their last model and the server's (FedALA, Zhang et al. 2023).

    ``start = v_k + (w_t - v_k) * a_k``, value by value, with ``a_k`` in [0, 1] and at first 1. In a first training a_k
    takes steps along the gradient of F_k at the mix, ``(w_t - v_k) * grad``, with everything else as it is.

    Args:
        mixed: The parameters that are mixed, the last layers in the paper; the others are the server's. Patterns as for
            :class:`PersonalParameters`.
        lr: Learning rate of a_k.
        epochs: Local epochs (or steps, if the algorithm counts steps) of the first training.

    Attributes:
        own: Every client's last model v_k.
        shares: Every client's a_k, shape ``(num_parameters,)``.
    """

    mixed: Patterns = "*"
    lr: Positive = 1.0
    epochs: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)
        self.mixed = as_patterns("mixed", self.mixed)

    def setup(self, federation: Federation) -> None:
        """Start from a_k = 1: the server's model."""
        super().setup(federation)
        self.add_client_vectors("shares", torch.ones_like(federation.zeros()))
        self._mixed = federation.mask(federation.matching(as_patterns("mixed", self.mixed), "mixed"))[
            : federation.num_parameters
        ]
        self._starts: dict[int, Tensor] = {}

    def start(self, task: Task, server: Server) -> Tensor:
        """Return the mix: as a_k was, and in the second training as it is now."""
        if not task.phase and task.client in self._starts:
            return self._starts[task.client]
        n, own = self.federation.num_parameters, self.own[task.client]
        mix = torch.lerp(own[:n], server.model[:n], self.shares[task.client])
        return torch.cat([torch.where(self._mixed, mix, server.model[:n]), server.model[n:]])

    def correction(self, client: LocalClient) -> Correction:
        """Return the steps of a_k."""
        k, n, lengths = client.task.client, self.federation.num_parameters, list(self.federation.lengths)
        apart = torch.where(self._mixed, self._received[:n] - self.own[k][:n], 0.0)
        self._walks[k] = _ShareWalk(self.lr, apart.split(lengths), self.shares[k].split(lengths))
        return self._walks[k]

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Learn the mix, then train from it."""
        self._received, self._starts, self._walks = server.model, {}, dict[int, _ShareWalk]()
        for result in (yield further(tasks, self.epochs)):
            self._starts[result.client] = result.vector
            self.shares[result.client] = torch.cat(self._walks.pop(result.client).shares)
        shown = yield from super().play(tasks, server)
        self._starts = {}
        return shown

    def on_client_end(self, result: ClientResult) -> None:
        """Keep the client's model."""
        if not result.task.phase:
            self.own[result.client] = result.vector

    def expected_tasks(self) -> int:
        """Return the number of first trainings."""
        return self.cohort_size


class _ShareWalk(Correction):
    """Steps of a_k, with the model at the mix."""

    walks = True

    def __init__(self, lr: float, apart: Sequence[Tensor], shares: Sequence[Tensor]) -> None:
        super().__init__()
        self.lr, self.apart, self.shares = lr, apart, list(shares)

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Move a_k and the mix; leave nothing to the optimizer."""
        for place, parameter in enumerate(parameters):
            if parameter.grad is not None:
                apart, share = self.apart[place], self.shares[place]
                self.shares[place] = (share - self.lr * apart * parameter.grad.flatten()).clamp_(0, 1)
                _write([parameter], [parameter + (apart * (self.shares[place] - share)).view_as(parameter)])
                parameter.grad = None


@dataclass(eq=False, kw_only=True)
class Clusters(Schedule):
    """The server keeps several models, and each client trains the one whose loss on its data is least (IFCA).

    Ghosh et al. 2020, with averaging of models. Every client of a round receives all models. The model that is shown is
    the one that most clients of the round chose.

    Args:
        number: Number of clusters.
        spread: The first models differ: each tensor has normal noise of so many of its standard deviations.

    Attributes:
        models: The clusters' models.
        chosen: The cluster that each client chose last; -1 before.
    """

    number: Count
    spread: Positive = 1.0
    shows_client_models = True

    def setup(self, federation: Federation) -> None:
        """Draw the clusters' first models."""
        n = federation.num_parameters
        deviation = [
            part.std(correction=0).expand_as(part) for part in federation.model[:n].split(list(federation.lengths))
        ]
        models = []
        for cluster in range(self.number):
            noise = torch.randn(n, generator=self.generator(None, cluster), dtype=torch.float64).to(federation.model)
            models.append(federation.model.clone())
            models[-1][:n] += self.spread * torch.cat(deviation) * noise
        self.add_state("models", models)
        self.add_state("chosen", [-1] * federation.num_clients)

    def start(self, task: Task, server: Server) -> Tensor:
        """Return the cluster's model: each in turn to be looked at, then the chosen one."""
        return self.models[task.phase - 1 if task.phase else self.chosen[task.client]]

    def correction(self, client: LocalClient) -> None:
        """Compute the client's loss with a cluster's model."""
        self._losses[client.task.client, client.task.phase - 1] = client.loss()

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let clients choose, train, and average each cluster's models, weighted by samples."""
        self._losses: dict[tuple[int, int], float] = {}
        for cluster in range(self.number):
            for _ in (yield further(tasks, work=0, phase=cluster + 1)):
                pass
        shares = self.federation.gather(self._losses)
        losses = {key: loss for share in shares for key, loss in share.items()}
        for task in tasks:
            self.chosen[task.client] = min(range(self.number), key=lambda c: losses[task.client, c])
        means = [RunningMean() for _ in self.models]
        for result in (yield tasks):
            means[self.chosen[result.client]].add(result.vector, result.num_samples)
        merged = [mean.pop(self.federation, server.model)[0] for mean in means]
        self.models = [old if new is None else new.to(old.dtype) for old, new in zip(self.models, merged, strict=True)]
        if tasks:
            counts = [sum(self.chosen[task.client] == cluster for task in tasks) for cluster in range(self.number)]
            server.replace(self.models[counts.index(max(counts))])
        return server.model

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the model of the cluster that the client chose."""
        return self.models[self.chosen[client]] if self.chosen[client] >= 0 else None


# ---- objectives ----


@dataclass(eq=False)
class Frozen(LocalObjective):
    """The plain objective, of which clients leave some parameters as they are (FedBABU, Oh et al. 2022).

    Args:
        pattern: Which; as for :class:`PersonalParameters`.

    Raises:
        ValueError: When the fit begins, if a pattern matches nothing.
    """

    pattern: Patterns

    def __post_init__(self) -> None:
        check_fields(self)
        self.pattern = as_patterns("pattern", self.pattern)

    def setup(self, federation: Federation) -> None:
        """Find the parameters."""
        self._correction = Correction(frozen=places(federation, self.pattern, "pattern"))

    def correction(self, client: LocalClient) -> Correction:
        """Freeze them."""
        return self._correction


class WalkingObjective(LocalObjective):
    """An objective whose clients take gradients at several points, by a walk of their own."""

    def on_round_start(self, round_index: int) -> None:
        """Forget walks of a round that broke off."""
        self._walks: dict[int, Any] = {}

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the client's walk."""
        self._walks[client.task.client] = self.walk(client)
        return self._walks[client.task.client]

    def walk(self, client: LocalClient) -> Correction:
        """Return a new walk."""
        raise NotImplementedError

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Send what the walk has as w."""
        return self._walks.pop(result.client).sent(result)


@dataclass(eq=False)
class MoreauEnvelope(WalkingObjective):
    """``min_theta F_k(theta) + lam/2 |theta - w|^2`` as a function of w (pFedMe, Dinh et al. 2020, Algorithm 1).

    On each batch the client's model theta takes ``inner_steps`` steps of the module's optimizer, then w one along the
    envelope's gradient: ``w <- w - lr lam (w - theta)``. The client sends w and keeps theta.

    Args:
        lam: Weight of the proximal term.
        inner_steps: K, steps of theta on each batch.
        lr: eta, the learning rate of w.

    Attributes:
        own: Every client's theta.
    """

    lam: Positive = 15.0
    inner_steps: Count = 5
    lr: Positive = 0.005

    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.add_client_vectors("own", federation.model)

    def walk(self, client: LocalClient) -> Correction:
        """Return the steps of theta and w."""
        return _EnvelopeWalk(self)

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Keep theta; send w."""
        self.own[result.client] = result.vector
        return super().on_client_end(result)

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return theta."""
        return self.own.get(client)


@dataclass(eq=False)
class ModelMixture(WalkingObjective):
    """Each client learns the mixture of a model of its own and the server's (APFL, Deng et al. 2020, Algorithm 1).

    On each batch w takes a step along ``grad F_k(w)``, and the client's v one along the gradient by v of
    ``F_k(alpha v + (1 - alpha) w)``, which is alpha times the gradient at the mixture. Both are steps of
    the module's optimizer, which should be SGD without momentum, as in the paper. The client sends w.

    Args:
        alpha: Share of the own model, in [0, 1].
        alpha_lr: Learning rate of each client's alpha, ``alpha <- alpha - alpha_lr <v - w, grad>``; 0 keeps it.

    Attributes:
        own: Every client's v.
        alphas: Every client's alpha, shape ``(1,)``.
    """

    alpha: Annotated[float, "[0, 1]"] = 0.5
    alpha_lr: NotNegative = 0.0

    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.add_client_vectors("own", federation.model)
        self.add_client_vectors("alphas", torch.full_like(federation.model[:1], self.alpha))

    def walk(self, client: LocalClient) -> Correction:
        """Return the steps of w and v."""
        k = client.task.client
        own = self.own[k][: self.federation.num_parameters].split(list(self.federation.lengths))
        return _MixtureWalk(own, float(self.alphas[k]), self.alpha_lr)

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Keep v and alpha; send w."""
        walk, sent = self._walks[result.client], super().on_client_end(result)
        self.own[result.client] = torch.cat([*walk.own, result.buffers])
        self.alphas[result.client] = torch.full_like(self.alphas[result.client], walk.alpha)
        return sent

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the mixture of the client's v and the server's model."""
        own = self.own.get(client)
        return None if own is None else torch.lerp(model, own.to(model), float(self.alphas[client]))


@dataclass(eq=False)
class MetaLearning(WalkingObjective):
    """``F_k(w - alpha grad F_k(w))``: the loss after one step of fine-tuning (Per-FedAvg, Fallah et al. 2020).

    Each step takes a batch for the inner gradient and another for the gradient g at the point that it leads to. With
    ``"first-order"`` w takes a step of the module's optimizer along g. With ``"hessian-free"`` it is along
    ``g - alpha (grad F(w + delta g) - grad F(w - delta g)) / (2 delta)``, with a third batch.

    Args:
        alpha: Learning rate of the inner step.
        gradient: ``"first-order"`` or ``"hessian-free"``.
        delta: Length of the difference, relative to g.
    """

    alpha: Positive = 0.01
    gradient: Literal["first-order", "hessian-free"] = "first-order"
    delta: Positive = 1e-3

    def walk(self, client: LocalClient) -> Correction:
        """Return the steps of w."""
        return _MetaWalk(self)


# ---- how their clients go ----


class Walk(Correction):
    """Steps at several points: the module holds w, or a point to which it went from w."""

    walks = True

    def __init__(self, steps_per_batch: tuple[int, ...]) -> None:
        super().__init__(steps_per_batch=steps_per_batch)
        self.turn = 0
        self.outer: list[Tensor] | None = None  # w, while the module holds another point

    def leave(self, parameters: Sequence[Tensor], point: Sequence[Tensor]) -> None:
        """Go to a point, and take no step there."""
        self.outer = [tensor.detach().clone() for tensor in parameters] if self.outer is None else self.outer
        _write(parameters, point)
        for parameter in parameters:
            parameter.grad = None

    def come_back(self, parameters: Sequence[Tensor]) -> None:
        """Go to w."""
        if self.outer is not None:
            _write(parameters, self.outer)
            self.outer = None

    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result with w."""
        if self.outer is None:
            return result
        return result.with_vector(torch.cat([*(tensor.flatten() for tensor in self.outer), result.buffers]))


class _EnvelopeWalk(Walk):
    """theta near w; ``outer`` is w all the time."""

    def __init__(self, settings: MoreauEnvelope) -> None:
        super().__init__((settings.inner_steps,))
        self.lam, self.rate, self.inner_steps = settings.lam, settings.lr * settings.lam, settings.inner_steps

    def on_step_start(self, parameters: Sequence[Tensor]) -> None:
        """Begin at w; after the inner steps of a batch, move w."""
        if self.outer is None:
            self.outer = [tensor.detach().clone() for tensor in parameters]
        elif self.turn == self.inner_steps:
            self.move(parameters)

    def move(self, parameters: Iterable[Tensor]) -> None:
        """Take w's step towards theta."""
        assert self.outer is not None
        self.turn = 0
        self.outer = [
            w.lerp(theta.detach().view_as(w), self.rate) for w, theta in zip(self.outer, parameters, strict=True)
        ]

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Add ``lam (theta - w)``."""
        assert self.outer is not None
        self.turn += 1
        for theta, w in zip(parameters, self.outer, strict=True):
            if theta.grad is not None:
                theta.grad += self.lam * (theta.detach() - w)

    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result with w after its last step."""
        if self.outer is not None and self.turn:
            self.move(result.parameters.split([tensor.numel() for tensor in self.outer]))
        return super().sent(result)


class _MixtureWalk(Walk):
    """w, then v at the mixture; ``outer`` is w while the module holds the mixture or v."""

    def __init__(self, own: Sequence[Tensor], alpha: float, alpha_lr: float) -> None:
        super().__init__((2,))
        self.own, self.alpha, self.alpha_lr = list(own), alpha, alpha_lr

    def on_step_start(self, parameters: Sequence[Tensor]) -> None:
        """Go to w, or from there to the mixture."""
        if self.turn == 0 and self.outer is not None:
            self.own = [tensor.detach().clone().flatten() for tensor in parameters]
            self.come_back(parameters)
        elif self.turn == 1 and self.outer is None:
            self.leave(
                parameters, [w.lerp(v.view_as(w), self.alpha) for w, v in zip(parameters, self.own, strict=True)]
            )

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """At the mixture, prepare v's step and learn alpha."""
        if self.turn == 1:
            assert self.outer is not None
            slope = 0.0
            for parameter, v, w in zip(parameters, self.own, self.outer, strict=True):
                if parameter.grad is not None:
                    slope += float((parameter.grad * (v.view_as(w) - w)).sum())
                    parameter.grad *= self.alpha
            _write(parameters, [v.view_as(parameter) for v, parameter in zip(self.own, parameters, strict=True)])
            self.alpha = min(1.0, max(0.0, self.alpha - self.alpha_lr * slope))
        self.turn = 1 - self.turn

    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result with w."""
        if self.turn == 0 and self.outer is not None:
            self.own = list(result.parameters.split([tensor.numel() for tensor in self.outer]))
        return super().sent(result)


class _MetaWalk(Walk):
    """w, the point of the inner step, and with second order two points beside w along its gradient."""

    def __init__(self, settings: MetaLearning) -> None:
        self.second = settings.gradient == "hessian-free"
        super().__init__((1, 1, 2) if self.second else (1,))
        self.alpha, self.delta = settings.alpha, settings.delta

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Go to the next point, or back to w with the gradient for its step."""
        here = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
        if self.turn == 0:
            self.leave(parameters, torch._foreach_sub(list(parameters), torch._foreach_mul(here, self.alpha)))
        elif self.turn == 1 and self.second:
            self.gradient = here
            self._go(parameters, self.delta)
        elif self.turn == 2:
            self.plus = here
            self._go(parameters, -self.delta)
        else:
            self.come_back(parameters)
            if self.second:
                for parameter, g, plus, minus in zip(parameters, self.gradient, self.plus, here, strict=True):
                    parameter.grad = g - self.alpha * (plus - minus) / (2 * self.delta)
        self.turn = (self.turn + 1) % (4 if self.second else 2)

    def _go(self, parameters: Sequence[Tensor], delta: float) -> None:
        assert self.outer is not None
        self.leave(parameters, [w + delta * g for w, g in zip(self.outer, self.gradient, strict=True)])


def _write(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
