"""The mean of low-rank adapters: products B A, whose mean is not the product of means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation, Weighting
from fl_lightning.parts.aggregations.holders import Padding, mean_of_holders, with_shares
from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.exchanges.partial import AdapterRanks, pairs_of, trains_once
from fl_lightning.parts.exchanges.stacks import StackMessages
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class AdapterMean(Aggregation):
    """The weighted mean of the clients' models, in which adapters may be merged by their products (eq. (79), (80)).

    Adapters are pairs of trained parameters ``lora_A`` and ``lora_B``, as peft names them. Each round logs
    ``fed/lora_error``, the Frobenius norm, over all pairs, of the clients' mean of B A minus the merged B A.

    Equations are numbered as in ``docs/references.md``.

    Args:
        by_svd: Whether B A becomes the best approximation of its rank to the clients' mean of B A (FlexLoRA), instead
            of the product of the means of B and A.
        weighting: ``"samples"`` or ``"uniform"``.
        ranks: Says how many ranks clients have; all of them if ``None``.
        padding: Clients of fewer ranks count with 0 in the means of A and B (``"zeros"``), or only those that have a
            rank count (``"counts"``). A rank that no client of the round has stays as it is.

    Raises:
        ValueError: If ``weighting`` is anything else; when the fit begins, with ``by_svd``, if one factor of an adapter
            is each client's own.
    """

    by_svd: bool = False
    weighting: Weighting = "samples"
    ranks: AdapterRanks | None = None
    padding: Padding = "zeros"

    @override
    def setup(self, federation: Federation) -> None:
        """Find the pairs whose product the server knows: both factors are trained and travel."""
        self._pairs = pairs_of(federation, need_both=self.by_svd)
        self.error: float
        self.add_state("error", 0.0)

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Return the mean, with B A by its products if asked for."""
        weights = [self.weight_of(result) for result in results]
        running = RunningMean()
        for result, weight in zip(results, weights, strict=True):
            parameters = result.parameters
            if self.ranks is not None:
                parameters = with_shares(parameters, self.ranks.held_parameters(result.task))
            running.add(parameters, weight)
        mean, total = running.pop()
        if mean is None:
            return None
        if self.ranks is not None:
            mean = mean_of_holders(mean, model, self.padding)
        # The factors are views of the merged model, and are written to.
        merged = mean.clone()
        clients = [factors_of(self._pairs, self.federation, result.parameters.to(merged)) for result in results]
        square = 0.0
        for place, (a, b) in enumerate(factors_of(self._pairs, self.federation, merged)):
            shares = [(*factors[place], weight / total) for factors, weight in zip(clients, weights, strict=True)]
            left, right = stack_of(shares)
            if self.by_svd:
                q_left, r_left = torch.linalg.qr(left)
                q_right, r_right = torch.linalg.qr(right.T)
                u, values, v = torch.linalg.svd(r_left @ r_right.T)
                rank = min(len(a), len(values))
                a.zero_()[:rank] = (v @ q_right.T)[:rank]
                b.zero_()[:, :rank] = (q_left @ u)[:, :rank] * values[:rank]
            # |left right - b a|, by the triangular factors of both sides.
            r_left = torch.linalg.qr(torch.cat([left, -b], dim=1), mode="r").R
            r_right = torch.linalg.qr(torch.cat([right, a]).T, mode="r").R
            product: Tensor = r_left @ r_right.T
            square += float(product.square().sum())
        self.error = square**0.5
        return merged

    @override
    def values(self) -> dict[str, float]:
        """Return the error of the last move."""
        return {"fed/lora_error": self.error}


def factors_of(
    pairs: Iterable[tuple[str, str]], federation: Federation, parameters: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Return views of A and B of each pair as matrices."""
    views = federation.tensors(parameters)
    return [(views[a].flatten(1), views[b].flatten(1)) for a, b in pairs]


def stack_of(shares: Iterable[tuple[Tensor, Tensor, float]]) -> tuple[Tensor, Tensor]:
    """Return the sum of p B A as one product, of matrices that are as narrow as all adapters together.

    Args:
        shares: A, B and p of each client.
    """
    lefts: list[Tensor] = []
    rights: list[Tensor] = []
    for a, b, share in shares:
        lefts.append(b * share)
        rights.append(a)
    return torch.cat(lefts, dim=1), torch.cat(rights)


@dataclass(eq=False)
class AdapterStack(Aggregation):
    """The weighted sum of the products B A, which goes into the frozen weights; adapters begin anew (FLoRA; eq. (99)).

    Wang et al. 2024. Someone who knows the module adds ``scale * left @ right`` of each :attr:`stack` to the weights
    that the adapter is beside, after the round; :class:`~fl_lightning.FedLoRA` does. B is then 0, and A is drawn from
    ``U(-1/sqrt(n), 1/sqrt(n))`` for n inputs, the same for all clients. All other parameters become the weighted mean.

    Equations are numbered as in ``docs/references.md``.

    Args:
        messages: Counts what clients are sent.
        weighting: ``"samples"`` or ``"uniform"``.

    Attributes:
        pairs: The names of A and B of each adapter.
        stack: For each adapter, the factors of the sum that is still to be added: ``[left, right]``.

    Raises:
        ValueError: When an algorithm is made, if the weights could not change after the round; when the fit begins, if
            one factor of an adapter is each client's own.
    """

    messages: StackMessages
    weighting: Weighting = "samples"

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield which other parts need weights that stay."""
        schedule = algorithm.schedule
        if schedule.asynchronous or not trains_once(schedule):
            yield (
                f"The schedule cannot be {schedule!r} with adapters that are folded after each round. Give "
                "Synchronous()."
            )
        if not algorithm.server_optimizer.replaces_model:
            yield (
                f"The server optimizer cannot be {algorithm.server_optimizer!r}: adapters begin anew in each round, "
                "so that they do not move. Leave it out, or give another `mode`."
            )
        for member in algorithm.chain.members:
            if member.remembers_messages:
                yield f"`exchange` cannot have {member!r}: what it owes is of adapters that were folded."
        if algorithm.optimizers.state == "kept":
            yield '`optimizer_state` must be "fresh" with adapters that begin anew in each round, got "kept".'

    @override
    def setup(self, federation: Federation) -> None:
        self.pairs = pairs_of(federation, need_both=True)
        self.stack: list[list[Tensor]]
        self.add_state("stack", [])

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Keep the stacks, and return the mean with new adapters.

        Raises:
            RuntimeError: If nobody has added the last stacks to the frozen weights.
        """
        if self.stack:
            raise RuntimeError(
                "AdapterStack's `stack` of the last round was not added to the frozen weights. Use FedLoRA."
            )
        running = RunningMean()
        for result in results:
            running.add(result.parameters, self.weight_of(result))
        mean, total = running.pop()
        if mean is None:
            return None
        merged = mean.clone()
        ranks = self.messages.ranks
        stack: list[list[Tensor]] = []
        size = 0
        clients = [factors_of(self.pairs, self.federation, result.parameters.to(merged)) for result in results]
        for place, (a, b) in enumerate(factors_of(self.pairs, self.federation, merged)):
            shares: list[tuple[Tensor, Tensor, float]] = []
            for result, factors in zip(results, clients, strict=True):
                own_a, own_b = factors[place]
                rank = len(own_a) if ranks is None else ranks.num_held(ranks.level(result.task), len(own_a))
                shares.append((own_a[:rank], own_b[:, :rank], self.weight_of(result) / total))
            left, right = stack_of(shares)
            stack.append([left, right])
            size += left.numel() + right.numel()
            bound = a.shape[1] ** -0.5
            drawn = torch.rand(a.shape, generator=self.generator(None, place), dtype=torch.float64)
            a.copy_(bound * (2 * drawn - 1))
            b.zero_()
        self.stack = stack
        self.messages.sizes = [*self.messages.sizes, size]
        return merged
