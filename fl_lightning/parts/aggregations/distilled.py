"""The mean of the clients' models, which then learns their mean logits on public data (FedDF)."""

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

from fl_lightning.parts.aggregations.base import Aggregation, Weighting
from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.public_data import PublicData, check_loader, cosine_rates
from fl_lightning.settings import Count, Scheduled, check_fields

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False, repr=False)
class EnsembleDistillation(Aggregation):
    """FedDF's server: the mean of the clients' models takes steps towards their mean logits (Lin et al. 2020; (95-96)).

    Each step is on the next public batch and along the gradient of ``KL(softmax(mean_k f_k) | softmax(f))``, f the
    server's logits and f_k those of each result, all in eval mode. The learning rate falls along a half cosine. Buffers
    are the mean of the clients'. Every process makes all steps, and holds all results of the round.

    Equations are numbered as in ``docs/references.md``.

    Args:
        module: A module with the tensors of the trained one, such as that itself; ``forward`` returns logits.
        loader: Public batches: inputs, or a tuple or list whose first element they are; labels have no use. What it
            draws depends on the round and the seed.
        steps: N, steps in a round, on as many batches.
        lr: Learning rate of the first of them; a function of the round makes a schedule.
        optimizer: Class of their optimizer, which begins each round anew.
        weighting: How clients count in the mean of models, ``"samples"`` or ``"uniform"``; logits count alike.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If one is out of its range, or the loader has no batch or a generator of its own; when an algorithm
            is made, if clients keep a part of the model; when the fit begins, if the module lacks tensors.
    """

    module: nn.Module
    loader: DataLoader[Any]
    _: KW_ONLY
    steps: Count = 1000
    lr: Scheduled = 0.001
    optimizer: Callable[..., Optimizer] = torch.optim.Adam
    weighting: Weighting = "samples"
    merges_buffers = True

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        check_loader("loader", self.loader)

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the server does not have whole models of clients."""
        for member in algorithm.chain.members:
            if member.has_personal:
                name = type(self).__name__
                yield f"`exchange` cannot have {member!r} with {name}, which needs clients' whole models."

    @override
    def setup(self, federation: Federation) -> None:
        self._public = PublicData(self.module, self.loader, federation)

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        layout = self.federation.layout
        running = RunningMean()
        for result in results:
            running.add(result.vector, self.weight_of(result))
        mean, _ = running.pop()
        if mean is None:
            return None
        public = self._public
        teachers = [public.tensors(result.vector) for result in results]
        with public.batches(self.round, self.steps) as batches:
            lessons = ((inputs, public.mean_logits(teachers, inputs)) for inputs in batches)
            rates = cosine_rates(self.at("lr"), self.steps)
            learnt = public.learnt(mean.to(model.dtype), lessons, _divergence, self.optimizer, rates)
        _, buffers = layout.split(mean)
        return layout.joined(learnt.to(mean.dtype), buffers)


def _divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over rows of ``KL(softmax(targets) | softmax(logits))``."""
    return F.kl_div(logits.log_softmax(1), targets.log_softmax(1), reduction="batchmean", log_target=True)
