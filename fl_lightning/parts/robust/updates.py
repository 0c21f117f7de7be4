"""The updates of a round's clients as rows of a matrix, of which only blocks are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fl_lightning.parts.federation import ClientResult, accumulator
from fl_lightning.signatures import ShowsSignature

#: Parameters that are looked at together: 100 clients' take 50 MiB in float64.
BLOCK = 1 << 16
_KEPT = 256 * 2**20  # bytes of rows that are kept for the next look at them


class Updates(ShowsSignature):
    """``delta`` of each result, or weighted sums of them, as rows; computed in blocks of columns.

    Beside the results themselves, which hold a model each, only one block is in memory: m times 65,536 numbers. Rows of
    256 MiB in whole, or less, are kept.

    Args:
        results: The clients' results, at least one.
        matrix: Row i is ``sum_j matrix[i, j] delta_j``, shape ``(rows, len(results))``; the updates as they are if
            ``None``.

    Attributes:
        results: The clients' results, which are not to be changed.
        size: Number of parameters.
        weights: How much each row counts for the module's buffers, shape ``(rows,)``: alike, unless a rule sets the
            weights that it gives the rows' parameters.
    """

    def __init__(self, results: Sequence[ClientResult], matrix: Tensor | None = None) -> None:
        self.results, self._matrix = list(results), matrix
        self._kept: list[Tensor] | None = None
        self.size = len(self.results[0].parameters)
        self.weights = torch.ones(len(self), dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.results) if self._matrix is None else len(self._matrix)

    def mixed(self, matrix: Tensor) -> Updates:
        """Return weighted sums of these rows, ``matrix`` of shape ``(new rows, rows)``."""
        return Updates(self.results, matrix if self._matrix is None else matrix @ self._matrix)

    def blocks(self) -> Iterator[Tensor]:
        """Yield the columns in blocks of shape ``(rows, columns)``, float64; they are not to be changed."""
        if self._kept is None and len(self) * self.size * 8 <= _KEPT:
            self._kept = list(self._computed())
        yield from self._computed() if self._kept is None else self._kept

    def zeros(self) -> Tensor:
        """Return a row of zeros, shape ``(size,)``, in the blocks' type and on their device."""
        vector = self.results[0].vector
        return torch.zeros(self.size, dtype=accumulator(vector), device=vector.device)

    def _computed(self) -> Iterator[Tensor]:
        for begin in range(0, self.size, BLOCK):
            columns = slice(begin, min(begin + BLOCK, self.size))
            block = torch.stack([_moved(result, columns) for result in self.results])
            yield block if self._matrix is None else self._matrix.to(block) @ block

    def combined(self, weights: Tensor) -> Tensor:
        """Return ``sum_i weights[i] row_i``, shape ``(size,)``, float64."""
        return torch.cat([weights.to(block) @ block for block in self.blocks()])

    def buffers(self) -> Tensor:
        """Return the mean of the clients' buffers by :attr:`weights`, float64."""
        weights = self.weights.cpu() if self._matrix is None else self.weights.cpu() @ self._matrix.cpu()
        kind = accumulator(self.results[0].vector)
        pairs = zip(self.results, weights.tolist(), strict=True)
        total: Tensor = sum(weight * result.buffers.to(kind) for result, weight in pairs)  # type: ignore[assignment]
        return total / float(weights.sum())

    def mean(self) -> Tensor:
        """Return the plain mean of the rows, shape ``(size,)``, float64."""
        return self.combined(torch.full((len(self),), 1 / len(self), dtype=torch.float64))

    def distances(self) -> Tensor:
        """Return the squared distances between all pairs of rows, shape ``(rows, rows)``, float64."""
        # not by way of inner products: one long row would drown the short distances of the others
        exact = "donot_use_mm_for_euclid_dist"
        return torch.stack([torch.cdist(block, block, compute_mode=exact).square() for block in self.blocks()]).sum(0)

    def distances_to(self, center: Tensor) -> Tensor:
        """Return the distance of each row to ``center``, shape ``(rows,)``, float64."""
        parts = zip(self.blocks(), center.split(BLOCK), strict=True)
        return torch.stack([(block - part).square().sum(1) for block, part in parts]).sum(0).sqrt()


def _moved(result: ClientResult, columns: slice) -> Tensor:
    kind = accumulator(result.vector)
    return result.parameters[columns].to(kind) - result.start[columns].to(kind)
