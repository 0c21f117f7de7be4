"""Clients with models of their own that agree on the class scores of public data (FedMD)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from typing_extensions import override

from fl_lightning.parts.exchanges.personal import PersonalParameters
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import Task
from fl_lightning.parts.part import walk
from fl_lightning.parts.public_data import PublicData, check_loader
from fl_lightning.parts.schedules.base import Play
from fl_lightning.parts.schedules.synchronous import Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count, Scheduled, check_fields

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False, repr=False)
class PublicConsensus(Synchronous):
    """Clients send class scores of public data, digest their mean, and train on (FedMD, Li and Wang 2019; (97-98)).

    A round has three parts. Each client of the round sends its model's scores of some public batches, and gets the mean
    over the clients. It takes steps along the gradient of the mean absolute difference to these, with its model in eval
    mode and an optimizer of their own. Then it trains on its own samples. Digestion is no local step. A round whose
    clients all have the first model has nothing to digest.

    Use it with :class:`PersonalParameters` of ``"*"``, so that nothing of the models travels.

    Equations are numbered as in ``docs/references.md``.

    Args:
        module: A module with the tensors of the trained one, such as that itself; ``forward`` returns class scores.
        loader: Public batches: inputs, or a tuple or list whose first element they are; labels have no use. What it
            draws depends on the round and the seed.
        personal_parameters: The exchange that keeps clients' models, which must be the algorithm's.
        batches: Public batches in a round.
        digestions: How often a client goes through them.
        lr: Learning rate of digestion; a function of the round makes a schedule.
        optimizer: Class of its optimizer, which begins each round anew.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If one is out of its range, or the loader has no batch or a generator of its own; when an algorithm
            is made, if ``personal_parameters`` is not its exchange; when the fit begins, if the module lacks tensors.
    """

    module: nn.Module
    loader: DataLoader[Any]
    personal_parameters: PersonalParameters
    _: KW_ONLY
    batches: Count = 10
    digestions: Count = 1
    lr: Scheduled = 0.001
    optimizer: Callable[..., Optimizer] = torch.optim.Adam
    starts_from_server = False

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        check_loader("loader", self.loader)

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether clients' models are not all their own."""
        kept = self.personal_parameters
        if not kept.shares_nothing or all(part is not kept for part in walk(algorithm.chain)):
            yield f'`personal_parameters` must be `PersonalParameters("*")`, one of the exchanges, got {kept!r}.'

    @override
    def setup(self, federation: Federation) -> None:
        self._public = PublicData(self.module, self.loader, federation)
        #: The inputs of the round's public batches, and the scores to digest; none if there is nothing to digest.
        self._lessons: list[tuple[Any, Tensor]] = []
        self._numbers = 0

    @property
    @override
    def numbers_sent(self) -> int:
        return self._numbers

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let clients agree on scores, digest these, and train."""
        kept = self.personal_parameters
        federation = self.federation
        public = self._public
        mine = [task.client for task in tasks if task.client % federation.num_ranks == federation.rank]
        models = [public.tensors(kept.insert(server.model, kept.own[client])) for client in mine]
        lessons: list[tuple[Any, Tensor]] = []
        with public.batches(self.round, self.batches) as batches:
            for inputs in batches:
                scores = public.mean_logits(models or [public.tensors(server.model)], inputs)
                total = federation.sum_over_ranks(scores.double() * len(models))
                # In the model's type: lessons wait for all clients, and 64 bits would take twice the memory.
                lessons.append((inputs, (total / max(1, len(tasks))).to(scores.dtype)))
        self._numbers = sum(scores.numel() for _, scores in lessons)
        have_trained = any(kept.own.get(client) is not None for client in mine)
        self._lessons = lessons if any(federation.gather(have_trained)) else []
        shown = yield from super().play(tasks, server)
        self._lessons = []
        return shown

    @override
    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return the client's model after digestion."""
        if not self._lessons:
            return received
        lessons = self._lessons * self.digestions
        rates = [self.at("lr")] * len(lessons)
        with self._public.evaluating():
            learnt = self._public.learnt(received, lessons, F.l1_loss, self.optimizer, rates)
        layout = self.federation.layout
        _, buffers = layout.split(received)
        return layout.joined(learnt, buffers, received.dtype)
