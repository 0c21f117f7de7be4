"""The random draws of both QP partitions: client sizes, and a solution near the optimum."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fl_lightning.checks import check_fields
from fl_lightning.partitioners.quadratic.rectangle_moves import RectangleMoves, StepRule

AboveOne = Annotated[float, "(1, inf)"]

_MAX_SIZE_DRAWS = 100
_MAX_ROUNDINGS = 1000


class DrawsRandomSolution:
    """A partitioner with the arguments of Algorithm 3."""

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

        Arguments as in :class:`RectangleMoves`.
        """
        # an optimum that meets the target has no multiple to stop at
        stop_at = self.burn_in_stop**2 * optimal_loss if self.burn_in_stop and optimal_loss > 0 else np.inf
        moves = RectangleMoves(self.step, self.step_rule)
        chosen = moves.burn_in(optimal, target, self.burn_in, rng, stop_at, groups)
        return moves.search(chosen, target, self.search, rng, groups)


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
        if sizes.min() >= 0.5 and (rounded := _round_sizes(sizes, num_samples, rng)) is not None:
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
        np.add.at(changed, rng.integers(len(sizes), size=abs(gap)), np.sign(gap))
        if changed.min() > 0:
            return changed
    return None
