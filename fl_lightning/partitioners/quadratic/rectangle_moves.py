"""Random moves that keep the margins of a matrix (Xue et al. 2021, Algorithm 3; eq. (47)).

A move draws rows i, i' and columns j, j' uniformly with replacement and a step epsilon, and changes four entries:
(i, j) and (i', j') lose epsilon, (i, j') and (i', j) gain it. Rows, columns and non-negativity are preserved; with
i = i' or j = j' nothing changes.

The moves are made one after the other, exactly as the algorithm states; only their random numbers are drawn in advance,
and the loss is updated by the change of the four entries. A move takes about half a microsecond; where the loss is one
of sums over columns, about one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

StepRule = Literal["relative", "absolute"]

Moves = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Rows i and i', columns j and j', and epsilon's share of its bound."""

_CHUNK = 100_000  # moves whose random numbers are held at a time


@dataclass(frozen=True)
class RectangleMoves:
    """The rule by which Algorithm 3 draws its steps.

    Args:
        step: xi. With m = min(A_ij, A_i'j'), the step is drawn from
        rule: U(0, xi * m) if ``"relative"``, or U(0, min(m, xi)) if ``"absolute"``, xi counting samples.
    """

    step: float = 0.002
    rule: StepRule = "relative"

    def burn_in(
        self,
        alpha: np.ndarray,
        target: np.ndarray,
        num_moves: int,
        rng: np.random.Generator,
        stop_at: float = math.inf,
        groups: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return ``alpha`` after ``num_moves`` moves, or as soon as its loss has reached ``stop_at``.

        Equations are numbered as in ``docs/references.md``.

        Args:
            alpha: Start, shape (T, K), not negative.
            target: The wanted matrix, shape (T, K); the loss is ``sum((alpha - target)**2)``.
            num_moves: P.
            rng: Generator of the moves.
            stop_at: Loss that ends the burn-in.
            groups: If the loss is one of sums over columns (eq. (51)): the groups of each column, shape (K, F), whole
                numbers from 0 to G-1, different within a row. The target then has shape (T, G), an entry for the sum
                over the columns of a group.
        """
        entries = alpha.ravel().tolist()
        for loss in self._walk(entries, target, num_moves, rng, groups):
            if loss >= stop_at:
                break
        return np.array(entries).reshape(alpha.shape)

    def search(
        self,
        alpha: np.ndarray,
        target: np.ndarray,
        num_moves: int,
        rng: np.random.Generator,
        groups: np.ndarray | None = None,
    ) -> np.ndarray:
        """Make ``num_moves`` moves (Q) and return the matrix of least loss among those after each move.

        Arguments as in :meth:`burn_in`. The start itself does not compete, unless there are no moves.
        """
        entries = alpha.ravel().tolist()
        best, kept = math.inf, entries
        for loss in self._walk(entries, target, num_moves, rng, groups):
            if loss < best:
                best, kept = loss, entries.copy()
        return np.array(kept).reshape(alpha.shape)

    def _walk(
        self,
        entries: list[float],
        target: np.ndarray,
        num_moves: int,
        rng: np.random.Generator,
        groups: np.ndarray | None,
    ) -> Iterator[float]:
        """Make moves in place on the flattened matrix and yield the loss after each."""
        num_rows, num_cols = len(target), len(entries) // len(target)
        for start in range(0, num_moves, _CHUNK):
            moves = self._draw(num_rows, num_cols, min(_CHUNK, num_moves - start), rng)
            if groups is None:
                yield from self._move_entries(entries, target, moves)
            else:
                yield from self._move_groups(entries, target, groups, moves)

    def _move_entries(self, entries: list[float], target: np.ndarray, moves: Moves) -> Iterator[float]:
        rows_1, rows_2, cols_1, cols_2, shares = moves
        flat, num_cols = target.ravel(), target.shape[1]
        losing = rows_1 * num_cols + cols_1, rows_2 * num_cols + cols_2
        gaining = rows_1 * num_cols + cols_2, rows_2 * num_cols + cols_1
        # the target's part in the change of the loss
        constants = flat[losing[0]] + flat[losing[1]] - flat[gaining[0]] - flat[gaining[1]]
        columns = [array.tolist() for array in (*losing, *gaining, shares, constants)]
        cap = self.step if self.rule == "absolute" else math.inf
        loss = float(((np.array(entries) - flat) ** 2).sum())
        for p, q, r, s, share, constant in zip(*columns, strict=True):
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

    def _move_groups(
        self, entries: list[float], target: np.ndarray, groups: np.ndarray, moves: Moves
    ) -> Iterator[float]:
        num_cols, num_groups = len(groups), target.shape[1]
        residual: list[float] = (
            (group_sums(np.array(entries).reshape(-1, num_cols), groups, num_groups) - target).ravel().tolist()
        )
        groups_of = [tuple(row) for row in groups.tolist()]
        cap = self.step if self.rule == "absolute" else math.inf
        loss = float((np.array(residual) ** 2).sum())
        for row_1, row_2, col_1, col_2, share in zip(*(array.tolist() for array in moves), strict=True):
            p, q = row_1 * num_cols + col_1, row_2 * num_cols + col_2
            epsilon = min(entries[p], entries[q], cap) * share
            if epsilon > 0.0:
                entries[p] -= epsilon
                entries[q] -= epsilon
                entries[row_1 * num_cols + col_2] += epsilon
                entries[row_2 * num_cols + col_1] += epsilon
                first, second = row_1 * num_groups, row_2 * num_groups
                for losing, gaining in zip(groups_of[col_1], groups_of[col_2], strict=True):
                    if losing != gaining:
                        a, b, c, d = first + losing, second + gaining, first + gaining, second + losing
                        change = residual[c] + residual[d] - residual[a] - residual[b] + 2.0 * epsilon
                        loss += 2.0 * epsilon * change
                        residual[a] -= epsilon
                        residual[b] -= epsilon
                        residual[c] += epsilon
                        residual[d] += epsilon
            yield loss

    def _draw(self, num_rows: int, num_cols: int, num_moves: int, rng: np.random.Generator) -> Moves:
        row_1, row_2 = rng.integers(num_rows, size=(2, num_moves))
        col_1, col_2 = rng.integers(num_cols, size=(2, num_moves))
        share = rng.random(num_moves)
        if self.rule == "relative":
            share *= self.step
        share[(row_1 == row_2) | (col_1 == col_2)] = 0.0
        return row_1, row_2, col_1, col_2, share


def group_sums(alpha: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
    """Return the sum over the columns of each group.

    Args:
        alpha: Shape (T, K).
        groups: The groups of each column, shape (K, F), different within a row.
        num_groups: G.

    Returns:
        Shape (T, G).
    """
    members = np.zeros((len(groups), num_groups))
    np.put_along_axis(members, groups, 1.0, axis=1)
    sums: np.ndarray = alpha @ members
    return sums
