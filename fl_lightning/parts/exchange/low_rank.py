"""Matrices as products of two narrow ones."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.arguments import check_count
from fl_lightning.parts.exchange.compressor import Compressor, Link
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.traffic import Payload


class LowRank(Compressor):
    """Sends each weight matrix M as P Q^T of a low rank, after steps of the power iteration (Vogels et al. 2019).

    A tensor of more than two dimensions is a matrix of its first one by all others. Tensors of one dimension, and
    matrices that would not become smaller, are sent as they are. P is orthogonal, Q = M^T P. The iteration starts each
    time from new random numbers, which both sides draw. PowerSGD starts from the last Q, which clients that rarely take
    part do not have.

    Args:
        rank: Columns of P and Q.
        iterations: Steps of the power iteration; each brings the product nearer to the best one of that rank.
        error_feedback: Whether the client adds the remainder to its next update.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If another argument is out of its range; when an algorithm is made, beside another compression of
            the same way.
    """

    feeds_back: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    def __init__(self, rank: int, iterations: int = 2, error_feedback: bool = True, link: Link = "up") -> None:
        check_count("rank", rank)
        check_count("iterations", iterations)
        super().__init__(link, error_feedback)
        self.rank, self.iterations = int(rank), int(iterations)

    def on_fit_start(self, federation: Federation) -> None:
        """Note the shapes of the tensors."""
        super().on_fit_start(federation)
        self._shapes: list[tuple[int, int]] | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of each tensor that is sent; one column for a vector."""
        if self._shapes is None:
            chain, federation = self._whole_chain or self, self.federation
            known = zip(federation.names, federation.shapes, federation.lengths, strict=False)  # parameters come first
            sent = [tuple(shape) for name, shape, _ in known if chain.travels(name)]
            self._shapes = [(shape[0], prod(shape[1:])) if len(shape) > 1 else (prod(shape), 1) for shape in sent]
        return self._shapes

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the products, and what is sent as it is."""
        lengths = [rows * columns for rows, columns in self.shapes]
        if sum(lengths) != len(values):
            raise ValueError(
                f"{self!r} needs whole tensors, {sum(lengths)} values, but an exchange before it sends "
                f"{len(values)}. Put it first in `exchange`."
            )
        parts = zip(values.split(lengths), self.shapes, strict=True)
        products = [self._product(part.view(shape), generator).flatten() for part, shape in parts]
        return torch.cat(products) if products else values

    def _product(self, matrix: Tensor, generator: torch.Generator) -> Tensor:
        if not self._shrinks(*matrix.shape):
            return matrix
        exact = matrix.double()
        right = torch.randn(matrix.shape[1], self.rank, generator=generator, dtype=torch.float64).to(matrix.device)
        left = torch.empty(0)
        for _ in range(self.iterations):
            left = torch.linalg.qr(exact @ right).Q
            right = exact.T @ left
        return (left.to(matrix.dtype) @ right.to(matrix.dtype).T).to(matrix.dtype)

    def _shrinks(self, rows: int, columns: int) -> bool:
        return self.rank * (rows + columns) < rows * columns

    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the factors, and of what is sent as it is."""
        return replace(
            payload,
            values=sum(
                self.rank * (rows + columns) if self._shrinks(rows, columns) else rows * columns
                for rows, columns in self.shapes
            ),
        )
