"""The mean of low-rank adapters: products B A, whose mean is not the product of means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation, Weighting
from fl_lightning.parts.aggregations.holders import Padding, mean_of_holders, with_shares
from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.exchanges.partial import AdapterRanks
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult


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
        trained = federation.layout.trained
        traveling = trained if federation.traveling is None else federation.traveling
        self._pairs: list[tuple[str, str]] = []
        for name in trained:
            pair = name, name.replace("lora_A", "lora_B")
            if "lora_A" not in name.split(".") or pair[1] not in trained:
                continue
            sent = [factor for factor in pair if factor in traveling]
            if len(sent) == 2:
                self._pairs.append(pair)
            elif sent and self.by_svd:
                raise ValueError(
                    f"`by_svd` splits the mean of the products B A, of which the server must know both factors, but of "
                    f"{pair[0]} and {pair[1]} only {sent[0]} travels. Let both travel or none, or give `by_svd=False`, "
                    'which is `mode="average"` of FedLoRA.'
                )
        self.error: float
        self.add_state("error", 0.0)

    def _factors(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views of A and B of each pair as matrices."""
        views = self.federation.tensors(parameters)
        return [(views[a].flatten(1), views[b].flatten(1)) for a, b in self._pairs]

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Return the mean, with B A by its products if asked for."""
        weights = [self.weight_of(result) for result in results]
        running = RunningMean()
        for result, weight in zip(results, weights, strict=True):
            parameters = result.parameters
            running.add(parameters if self.ranks is None else with_shares(parameters, self._held(result)), weight)
        mean, total = running.pop()
        if mean is None:
            return None
        if self.ranks is not None:
            mean = mean_of_holders(mean, model, self.padding)
        # The factors are views of the merged model, and are written to.
        merged = mean.clone()
        clients = [self._factors(result.parameters.to(merged)) for result in results]
        square = 0.0
        for place, (a, b) in enumerate(self._factors(merged)):
            # The mean of B A as one product, of matrices that are as narrow as all clients' adapters together.
            lefts: list[Tensor] = []
            rights: list[Tensor] = []
            for factors, weight in zip(clients, weights, strict=True):
                own_a, own_b = factors[place]
                lefts.append(own_b * (weight / total))
                rights.append(own_a)
            left = torch.cat(lefts, dim=1)
            right = torch.cat(rights)
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
            square += float((r_left @ r_right.T).square().sum())
        self.error = square**0.5
        return merged

    def _held(self, result: ClientResult) -> Tensor | None:
        """Return which parameters a client holds, shape ``(num_parameters,)``; ``None`` for all."""
        held = None if self.ranks is None else self.ranks.held(result.task)
        if held is None:
            return None
        parameters, _ = self.federation.layout.split(held)
        return parameters

    @override
    def values(self) -> dict[str, float]:
        """Return the error of the last move."""
        return {"fed/lora_error": self.error}
