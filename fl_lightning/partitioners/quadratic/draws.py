"""The random draws of both QP partitions: client sizes, and a solution near the optimum.

A move of Algorithm 3 (Xue et al. 2021; eq. (47)) draws rows i, i' and columns j, j' uniformly with replacement and a
step epsilon, and changes four entries: (i, j) and (i', j') lose epsilon, (i, j') and (i', j) gain it. Rows, columns and
non-negativity are preserved; with i = i' or j = j' nothing changes.

The moves are made one after the other, exactly as the algorithm states; only their random numbers are drawn in advance,
and the loss is updated by the change of the four entries. A move takes about half a microsecond; where the loss is one
of sums over columns, about one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fl_lightning.settings import check_fields

StepRule = Literal["relative", "absolute"]
AboveOne = Annotated[float, "(1, inf)"]
_MAX_SIZE_DRAWS = 100
_MAX_ROUNDINGS = 1000
#: Moves whose random numbers are held at a time.
_CHUNK = 100_000


class DrawsRandomSolution:
    """A partitioner with the arguments of Algorithm 3.

    With m = min(A_ij, A_i'j'), the step of a move is drawn from U(0, step * m) if ``step_rule`` is ``"relative"``, or
    from U(0, min(m, step)) if it is ``"absolute"``.
    """

    burn_in: int
    search: int
    step: float
    step_rule: StepRule
    burn_in_stop: float | None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.step_rule == "relative" and self.step > 1:
            raise ValueError(
                f"`step` must be at most 1 when `step_rule` is 'relative', got {self.step!r}: a larger one makes "
                "entries negative. For a step in samples give `step_rule='absolute'`."
            )

    def draw_solution(
        self,
        optimal: np.ndarray,
        optimal_loss: float,
        target: np.ndarray,
        rng: np.random.Generator,
        groups: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return a matrix with the margins of ``optimal``: the best of ``search`` moves after those of the burn-in.

        The end of the burn-in does not compete, unless there are no moves after it.

        Equations are numbered as in ``docs/references.md``.

        Args:
            optimal: Start, shape (T, K), not negative.
            optimal_loss: Its loss.
            target: The wanted matrix, shape (T, K); the loss is ``sum((alpha - target)**2)``.
            rng: Generator of the moves.
            groups: If the loss is one of sums over columns (eq. (51)): the groups of each column, shape (K, F), whole
                numbers from 0 to G-1, different within a row. The target then has shape (T, G), an entry for the sum
                over the columns of a group.
        """
        stop_at = math.inf
        # An optimum that meets the target has no multiple to stop at.
        if self.burn_in_stop and optimal_loss > 0:
            stop_at = self.burn_in_stop**2 * optimal_loss
        entries: list[float] = optimal.ravel().tolist()
        for loss in self._walk(entries, target, self.burn_in, rng, groups):
            if loss >= stop_at:
                break
        least = math.inf
        best = entries
        for loss in self._walk(entries, target, self.search, rng, groups):
            if loss < least:
                least = loss
                best = entries.copy()
        return np.array(best).reshape(optimal.shape)

    def _walk(
        self,
        entries: list[float],
        target: np.ndarray,
        num_moves: int,
        rng: np.random.Generator,
        groups: np.ndarray | None,
    ) -> Iterator[float]:
        """Make moves in place on the flattened matrix and yield the loss after each."""
        num_rows = len(target)
        num_cols = len(entries) // len(target)
        cap = self.step if self.step_rule == "absolute" else math.inf
        for start in range(0, num_moves, _CHUNK):
            number = min(_CHUNK, num_moves - start)
            row_1, row_2 = rng.integers(num_rows, size=(2, number))
            col_1, col_2 = rng.integers(num_cols, size=(2, number))
            share = rng.random(number)
            if self.step_rule == "relative":
                share *= self.step
            share[(row_1 == row_2) | (col_1 == col_2)] = 0.0
            moves = _Moves(row_1, row_2, col_1, col_2, share)
            if groups is None:
                yield from _move_entries(entries, target, moves, cap)
            else:
                yield from _move_groups(entries, target, groups, moves, cap)


class _Moves(NamedTuple):
    """Moves one after the other: rows i and i', columns j and j', and epsilon's share of its bound."""

    row_1: np.ndarray
    row_2: np.ndarray
    col_1: np.ndarray
    col_2: np.ndarray
    share: np.ndarray


def _move_entries(entries: list[float], target: np.ndarray, moves: _Moves, cap: float) -> Iterator[float]:
    flat_target = target.ravel()
    num_cols = target.shape[1]
    # Of the four entries of a move p and q lose, r and s gain.
    at_p = moves.row_1 * num_cols + moves.col_1
    at_q = moves.row_2 * num_cols + moves.col_2
    at_r = moves.row_1 * num_cols + moves.col_2
    at_s = moves.row_2 * num_cols + moves.col_1
    # The target's part in the change of the loss.
    constants = flat_target[at_p] + flat_target[at_q] - flat_target[at_r] - flat_target[at_s]
    # Plain numbers: numpy's calls for single numbers would take most of the time.
    columns = [array.tolist() for array in (at_p, at_q, at_r, at_s, moves.share, constants)]
    loss = float(((np.array(entries) - flat_target) ** 2).sum())
    for p, q, r, s, share, constant in zip(*columns, strict=True):
        a = entries[p]
        b = entries[q]
        c = entries[r]
        d = entries[s]
        # A call of `min` takes longer than the two comparisons.
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
    entries: list[float], target: np.ndarray, groups: np.ndarray, moves: _Moves, cap: float
) -> Iterator[float]:
    num_cols = len(groups)
    num_groups = target.shape[1]
    sums = group_sums(np.array(entries).reshape(-1, num_cols), groups, num_groups)
    residual: list[float] = (sums - target).ravel().tolist()
    groups_of = groups.tolist()
    loss = float((np.array(residual) ** 2).sum())
    columns = [array.tolist() for array in moves]
    for row_1, row_2, col_1, col_2, share in zip(*columns, strict=True):
        p = row_1 * num_cols + col_1
        q = row_2 * num_cols + col_2
        epsilon = min(entries[p], entries[q], cap) * share
        if epsilon > 0.0:
            entries[p] -= epsilon
            entries[q] -= epsilon
            entries[row_1 * num_cols + col_2] += epsilon
            entries[row_2 * num_cols + col_1] += epsilon
            first = row_1 * num_groups
            second = row_2 * num_groups
            for losing, gaining in zip(groups_of[col_1], groups_of[col_2], strict=True):
                if losing != gaining:
                    a = first + losing
                    b = second + gaining
                    c = first + gaining
                    d = second + losing
                    change = residual[c] + residual[d] - residual[a] - residual[b] + 2.0 * epsilon
                    loss += 2.0 * epsilon * change
                    residual[a] -= epsilon
                    residual[b] -= epsilon
                    residual[c] += epsilon
                    residual[d] += epsilon
        yield loss


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


def draw_sizes(num_clients: int, size_alpha: float, num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Draw whole sizes of at least 1 that sum to the number of samples (eq. (44), (45)).

    Equations are numbered as in ``docs/references.md``.

    Returns:
        int64, shape (num_clients,).

    Raises:
        ValueError: If 100 draws always leave a client without samples.
    """
    for _ in range(_MAX_SIZE_DRAWS):
        sizes = rng.dirichlet(np.full(num_clients, size_alpha)) * num_samples
        if sizes.min() < 0.5:
            continue
        rounded = _round_sizes(sizes, num_samples, rng)
        if rounded is not None:
            return rounded
    raise ValueError(
        f"In {_MAX_SIZE_DRAWS} draws from Dir(size_alpha={size_alpha}) some of the {num_clients} clients had none of "
        f"the {num_samples} samples. Raise `size_alpha`, lower `num_clients` or use more samples."
    )


def _round_sizes(sizes: np.ndarray, num_samples: int, rng: np.random.Generator) -> np.ndarray | None:
    """Round, then add or take 1 at random clients until the sum is right; ``None`` if a client is always left empty."""
    rounded: np.ndarray = np.rint(sizes).astype(np.int64)
    gap = num_samples - int(rounded.sum())
    for _ in range(_MAX_ROUNDINGS):
        changed = rounded.copy()
        clients = rng.integers(len(sizes), size=abs(gap))
        np.add.at(changed, clients, np.sign(gap))
        if changed.min() > 0:
            return changed
    return None
