"""The mean of low-rank adapters: products B A, whose mean is not the product of means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.parts.aggregation import MeanAggregation, Weighting
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, accumulator


@dataclass(eq=False)
class AdapterMean(MeanAggregation):
    """The weighted mean of the clients' models, in which adapters may be merged by their products (eq. (79), (80)).

    Adapters are pairs of trained parameters ``lora_A`` and ``lora_B``, as peft names them. Each round logs
    ``fed/lora_error``, the Frobenius norm, over all pairs, of the clients' mean of B A minus the merged B A.

    Equations are numbered as in ``docs/references.md``.

    Args:
        by_svd: Whether B A becomes the best approximation of its rank to the clients' mean of B A (FlexLoRA), instead
            of the product of the means of B and A.
        weighting: ``"samples"`` or ``"uniform"``.

    Raises:
        ValueError: If ``weighting`` is anything else.
    """

    by_svd: bool = False
    weighting: Weighting = "samples"

    def setup(self, federation: Federation) -> None:
        """Find the pairs."""
        names = set(federation.names[: len(federation.lengths)])
        pairs = [(name, name.replace("lora_A", "lora_B")) for name in federation.names if "lora_A" in name.split(".")]
        self._pairs = [pair for pair in pairs if names.issuperset(pair)]
        self.add_state("error", 0.0)

    def _factors(self, parameters: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views of A and B of each pair as matrices."""
        views = self.federation.tensors(parameters)
        return [(views[a].flatten(1), views[b].flatten(1)) for a, b in self._pairs]

    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's parameters with its products B A, and its weight."""
        parameters = result.parameters.to(accumulator(result.parameters))
        products = [(b @ a).flatten() for a, b in self._factors(parameters)]
        return torch.cat([parameters, *products]), self.weight_of(result)

    def finish(self, model: Tensor, mean: Any, weight: float) -> Tensor:
        """Return the mean, with B A by its products if asked for."""
        n = len(model)
        merged, square = mean[:n].clone(), 0.0
        factors = self._factors(merged)
        products = mean[n:].split([len(b) * a.shape[1] for a, b in factors])
        for (a, b), flat in zip(factors, products, strict=True):
            product = flat.view(len(b), a.shape[1])
            if self.by_svd:
                left, values, right = torch.linalg.svd(product, full_matrices=False)
                rank = min(len(a), len(values))
                a.zero_()[:rank], b.zero_()[:, :rank] = right[:rank], left[:, :rank] * values[:rank]
            square += float((product - b @ a).square().sum())
        self.error = square**0.5
        return merged

    def values(self) -> dict[str, float]:
        """Return the error of the last move."""
        return {"fed/lora_error": self.error}
