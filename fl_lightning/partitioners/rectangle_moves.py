"""Random moves that keep the margins of a matrix (Xue et al. 2021, Algorithm 3; eq. (47)).

A move draws rows i, i' and columns j, j' uniformly with replacement and a step epsilon, and changes four entries:
(i, j) and (i', j') lose epsilon, (i, j') and (i', j) gain it. Rows, columns and non-negativity are preserved; with
i = i' or j = j' nothing changes.

The moves are made one after the other, exactly as the algorithm states; only their random numbers are drawn in advance,
and the loss is updated by the change of the four entries. A move takes about half a microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fl_lightning.arguments import check_choice, check_positive

StepRule = Literal["relative", "absolute"]

_CHUNK = 100_000  # moves whose random numbers are held at a time


@dataclass(frozen=True)
class RectangleMoves:
    """The rule by which Algorithm 3 draws its steps.

    Args:
        step: xi. With m = min(A_ij, A_i'j'), the step is drawn from
        rule: U(0, xi * m) if ``"relative"``, or U(0, min(m, xi)) if ``"absolute"``, xi counting samples.

    Raises:
        ValueError: If an argument is out of range; a relative step is at most 1.
    """

    step: float = 0.002
    rule: StepRule = "relative"

    def __post_init__(self) -> None:
        check_choice("step_rule", self.rule, ("relative", "absolute"))
        check_positive("step", self.step)
        if self.rule == "relative" and self.step > 1:
            raise ValueError(
                f"`step` must be at most 1 when `step_rule` is 'relative', got {self.step!r}: a larger one makes "
                "entries negative. For a step in samples give `step_rule='absolute'`."
            )

    def burn_in(
        self,
        alpha: np.ndarray,
        target: np.ndarray,
        num_moves: int,
        rng: np.random.Generator,
        stop_at: float = math.inf,
    ) -> np.ndarray:
        """Return ``alpha`` after ``num_moves`` moves, or as soon as its loss has reached ``stop_at``.

        Args:
            alpha: Start, shape (T, K), not negative.
            target: The wanted matrix, shape (T, K); the loss is ``sum((alpha - target)**2)``.
            num_moves: P.
            rng: Generator of the moves.
            stop_at: Loss that ends the burn-in.
        """
        entries = alpha.ravel().tolist()
        for loss in self._walk(entries, target, num_moves, rng):
            if loss >= stop_at:
                break
        return np.array(entries).reshape(alpha.shape)

    def search(self, alpha: np.ndarray, target: np.ndarray, num_moves: int, rng: np.random.Generator) -> np.ndarray:
        """Make ``num_moves`` moves (Q) and return the matrix of least loss among those after each move.

        Arguments as in :meth:`burn_in`. The start itself does not compete, unless there are no moves.
        """
        entries = alpha.ravel().tolist()
        best, kept = math.inf, entries
        for loss in self._walk(entries, target, num_moves, rng):
            if loss < best:
                best, kept = loss, entries.copy()
        return np.array(kept).reshape(alpha.shape)

    def _walk(
        self, entries: list[float], target: np.ndarray, num_moves: int, rng: np.random.Generator
    ) -> Iterator[float]:
        """Make moves in place on the flattened matrix and yield the loss after each."""
        cap = self.step if self.rule == "absolute" else math.inf
        loss = float(((np.array(entries) - target.ravel()) ** 2).sum())
        for start in range(0, num_moves, _CHUNK):
            for p, q, r, s, share, constant in self._draw(target, min(_CHUNK, num_moves - start), rng):
                a, b, c, d = entries[p], entries[q], entries[r], entries[s]
                epsilon = a if a < b else b
                if epsilon > cap:
                    epsilon = cap
                epsilon *= share
                loss += 2.0 * epsilon * (2.0 * epsilon - a - b + c + d + constant)
                entries[p] = a - epsilon
                entries[q] = b - epsilon
                entries[r] = c + epsilon
                entries[s] = d + epsilon
                yield loss

    def _draw(
        self, target: np.ndarray, num_moves: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, int, int, int, float, float]]:
        """Yield moves: four corners, epsilon's share of its bound, and the target's part in the change of the loss."""
        num_rows, num_cols = target.shape
        row_1, row_2 = rng.integers(num_rows, size=(2, num_moves))
        col_1, col_2 = rng.integers(num_cols, size=(2, num_moves))
        share = rng.random(num_moves)
        if self.rule == "relative":
            share *= self.step
        share[(row_1 == row_2) | (col_1 == col_2)] = 0.0
        flat = target.ravel()
        losing = row_1 * num_cols + col_1, row_2 * num_cols + col_2
        gaining = row_1 * num_cols + col_2, row_2 * num_cols + col_1
        constant = flat[losing[0]] + flat[losing[1]] - flat[gaining[0]] - flat[gaining[1]]
        columns = [array.tolist() for array in (*losing, *gaining, share, constant)]
        return zip(*columns, strict=True)
