"""Whole models of clients' own: further trainings of a round's clients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.messages import ClientResult, Task, further_tasks
from fl_lightning.parts.objectives.corrections import Correction, Passes, Term, Walk, pull_to_received, write_to
from fl_lightning.parts.schedules.base import Play
from fl_lightning.parts.schedules.synchronous import Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count, Positive, ScheduledWeight


class _OwnModels(Synchronous):
    """Synchronous rounds in which each client also keeps a whole model of its own, at first the server's first one."""

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.own: ClientVectors
        self.add_client_vectors("own", federation.model)

    @override
    def personal(self, client: int, model: Tensor) -> Tensor | None:
        return self.own.get(client)


@dataclass(eq=False, kw_only=True)
class ProximalModels(_OwnModels):
    """Each client also trains a model of its own, drawn to the server's (Ditto, Li et al. 2021).

    The client's model v_k minimises ``F_k(v) + lam/2 |v - w_t|^2``, from where it was, with w_t the model that the
    client received. With ``lam=0`` it is local training.

    Args:
        lam: Weight of the proximal term, at least 0; a function of the round makes a schedule.
        epochs: Local epochs (or steps, if the algorithm counts steps) of the own model; ``None``: as the server's.

    Attributes:
        own: Every client's model, at first the server's first one.
    """

    runs_at = "client"
    sends_updates_alone = True
    optimized_trainings = 2
    lam: ScheduledWeight = 1.0
    epochs: Count | None = None

    @override
    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return the client's own model in its further training."""
        return self.own[task.client] if task.phase else received

    @override
    def correction(self, client: LocalClient) -> Term:
        """Return ``lam/2 |v - w_t|^2``, whose centre is not the model that the client starts from."""
        return pull_to_received(self.at("lam"), client, self.federation.layout)

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Train each client's model while the server's is w_t, then the server's."""
        for result in (yield further_tasks(tasks, self.epochs)):
            self.own[result.client] = result.vector
        return (yield from super().play(tasks, server))

    @override
    def expected_tasks(self) -> int:
        """Return the number of further trainings."""
        return self.cohort_size


@dataclass(eq=False, kw_only=True)
class FineTuning(_OwnModels):
    """In some rounds all clients fine-tune the server's new model on their own data; the server never sees that.

    FedAvg with fine-tuning is the baseline of personal models (Cheng et al. 2021). After FedBABU only the head that was
    frozen may be tuned, or the whole model.

    A tuned model belongs to the round whose model was tuned. In later rounds, until the next fine-tuning, clients have
    no models of their own. A fit's last round has a fine-tuning, too. Where its end was not known before, as with
    ``EarlyStopping``, ``max_steps`` and ``max_time``, that comes after the round, with the learning rates and seeds of
    the round. It is not in the checkpoints of the round, from which a longer fit resumes bit for bit. A fit that
    resumes from a checkpoint without a round to train makes the tuned models of the checkpoint's round.

    Args:
        every: Number of rounds between two fine-tunings.
        epochs: Local epochs (or steps, if the algorithm counts steps) of fine-tuning.
        frozen: Parameters that are left as they are; patterns as for :class:`PersonalParameters`. ``None``: none.
        lr: Learning rate of plain SGD, which tunes in the place of the module's optimizers; ``None``: these tune.

    Attributes:
        own: Every client's tuned model.
        is_current: Whether these are tuned from the model that the last round left.
    """

    runs_at = "client"
    sends_updates_alone = True
    every: Count = 1
    epochs: Count = 1
    frozen: Patterns | None = None
    lr: Positive | None = None

    @override
    def setup(self, federation: Federation) -> None:
        """Find what is not tuned."""
        super().setup(federation)
        self.is_current: bool
        self.add_state("is_current", False)
        self._frozen: frozenset[int] = frozenset()
        if self.frozen is not None:
            self._frozen = federation.places(self.frozen, "frozen")

    @override
    def correction(self, client: LocalClient) -> Correction | None:
        """Freeze what is not tuned, and take the steps if they are not the optimizer's."""
        if self.lr is not None:
            return _PlainSteps(self.lr, self._frozen)
        return Term(frozen=self._frozen) if self._frozen else None

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Play the round, and fine-tune if it is time."""
        self.is_current = False
        shown = yield from super().play(tasks, server)
        if self._tunes:
            yield from self.finish(server)
        return shown

    @override
    def finish(self, server: Server) -> Play:
        """Let all clients fine-tune the server's model."""
        sizes = self.federation.sizes
        if not sizes.all():
            raise ValueError(
                f"All clients fine-tune, and client {int(sizes.argmin())} has no samples in round {self.round + 1}. "
                "Give `changes` by which each client has some."
            )
        tasks: list[Task] = []
        for client, size in enumerate(sizes):
            tasks.append(Task(client, client, int(size), self.epochs, self.round, phase=1, message=1))
        for result in (yield tasks):
            self.own[result.client] = result.vector
        self.is_current = True
        return server.model

    @property
    @override
    def personal_every(self) -> int:
        """Number of rounds between two fine-tunings."""
        return self.every

    @property
    @override
    def personal_is_current(self) -> bool:
        """Whether the tuned models are those of the last round."""
        return self.is_current

    @property
    def _tunes(self) -> bool:
        rounds = self.round + 1
        return rounds % self.every == 0 or rounds == self.federation.max_rounds

    @override
    def expected_tasks(self) -> int:
        """Return the number of fine-tunings in the round."""
        return self.federation.num_clients if self._tunes else 0

    @override
    def further_models(self, sent: int) -> int:
        """Return to how many clients the server sends its new model."""
        return self.federation.num_clients if self.is_current else 0

    @override
    def rounds_under_way(self) -> Collection[int]:
        """Return no earlier round, so that the learning rates of the last one are kept until the fit's end."""
        return ()


class _PlainSteps(Walk):
    """Steps of SGD that leave nothing to the module's optimizers."""

    def __init__(self, lr: float, frozen: Collection[int]) -> None:
        self.lr = lr
        self._frozen = frozen

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Step along the gradient."""
        passes.gradient()
        for place, parameter in enumerate(parameters):
            if parameter.grad is not None and place not in self._frozen:
                write_to([parameter], [parameter - self.lr * parameter.grad])


@dataclass(eq=False, kw_only=True)
class AdaptiveStart(_OwnModels):
    """Clients start from a learnt mix of their last model and the server's (FedALA, Zhang et al. 2023).

    ``start = v_k + (w_t - v_k) * a_k``, value by value, with ``a_k`` in [0, 1] and at first 1. In a first training a_k
    takes steps along the gradient of F_k at the mix, ``(w_t - v_k) * grad``, with everything else as it is. These are
    no local steps: they are not counted or logged, and move no schedule.

    Args:
        mixed: The parameters that are mixed, the last layers in the paper; the others are the server's. Patterns as for
            :class:`PersonalParameters`.
        lr: Learning rate of a_k.
        epochs: Local epochs (or steps, if the algorithm counts steps) of the first training.

    Attributes:
        own: Every client's last model v_k.
        shares: Every client's a_k, shape ``(num_parameters,)``.
    """

    runs_at = "client"
    sends_updates_alone = True
    mixed: Patterns = "*"
    lr: Positive = 1.0
    epochs: Count = 1
    starts_from_server = False

    @override
    def setup(self, federation: Federation) -> None:
        """Start from a_k = 1: the server's model."""
        super().setup(federation)
        self.shares: ClientVectors
        self.add_client_vectors("shares", torch.ones_like(federation.zeros()))
        names = federation.matching(self.mixed, "mixed")
        #: Which parameters are mixed, shape ``(num_parameters,)``.
        self._mixed, _ = federation.layout.split(federation.mask(names))
        #: The learnt mixes of the round's clients, shape ``(num_parameters,)``.
        self._mixes: dict[int, Tensor] = {}
        self._walks: dict[int, _ShareWalk] = {}

    @override
    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return the mix: as a_k was, and in the second training as it is now."""
        layout = self.federation.layout
        client = task.client
        parameters, buffers = layout.split(received)
        if not task.phase and client in self._mixes:
            return layout.joined(self._mixes[client], buffers)
        own, _ = layout.split(self.own[client])
        mix = torch.lerp(own, parameters, self.shares[client])
        return layout.joined(torch.where(self._mixed, mix, parameters), buffers)

    @override
    def correction(self, client: LocalClient) -> Walk:
        """Return the steps of a_k."""
        layout = self.federation.layout
        k = client.task.client
        received, _ = layout.split(client.received)
        own, _ = layout.split(self.own[k])
        apart = torch.where(self._mixed, received - own, 0.0)
        walk = _ShareWalk(self.lr, layout.views(apart), layout.views(self.shares[k]))
        self._walks[k] = walk
        return walk

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Learn the mix, then train from it."""
        self._mixes = {}
        for result in (yield further_tasks(tasks, self.epochs)):
            walk = self._walks.pop(result.client)
            self._mixes[result.client] = result.parameters
            self.shares[result.client] = torch.cat([share.flatten() for share in walk.shares])
        shown = yield from super().play(tasks, server)
        self._mixes = {}
        return shown

    @override
    def on_client_end(self, result: ClientResult) -> None:
        if not result.task.phase:
            self.own[result.client] = result.vector


class _ShareWalk(Walk):
    """Moves a_k, with the model at the mix; it is no step of the model.

    Args:
        lr: Learning rate of a_k.
        apart: ``w_t - v_k``, shaped as the parameters; 0 where nothing is mixed.
        shares: a_k, shaped as the parameters.
    """

    is_step = False
    why_alone = "before it trains, each client learns how to mix its last model with the server's"

    def __init__(self, lr: float, apart: Sequence[Tensor], shares: Sequence[Tensor]) -> None:
        self.lr = lr
        self.apart = apart
        self.shares = list(shares)

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Move a_k along the gradient at the mix, and the mix with it."""
        passes.gradient()
        for place, parameter in enumerate(parameters):
            if parameter.grad is None:
                continue
            apart = self.apart[place]
            before = self.shares[place]
            share = (before - self.lr * apart * parameter.grad).clamp_(0, 1)
            self.shares[place] = share
            write_to([parameter], [parameter + apart * (share - before)])
