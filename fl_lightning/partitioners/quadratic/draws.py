"""The random draws of both QP partitions: client sizes, and a solution near the optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl_lightning.arguments import check_count, got, is_number
from fl_lightning.partitioners.quadratic.rectangle_moves import RectangleMoves, StepRule

_MAX_SIZE_DRAWS = 100
_MAX_ROUNDINGS = 1000


@dataclass(frozen=True)
class RandomSolution:
    """Algorithm 3: ``burn_in`` moves away from the optimum, then ``search`` moves of which the best is kept.

    Args:
        moves: The rule by which a move is drawn.
        burn_in: P.
        search: Q.
        burn_in_stop: Ends the burn-in once the square root of the loss is this multiple of the optimum's.

    Raises:
        ValueError: If an argument is out of range.
    """

    moves: RectangleMoves
    burn_in: int
    search: int
    burn_in_stop: float | None

    def __post_init__(self) -> None:
        check_count("burn_in", self.burn_in, minimum=0)
        check_count("search", self.search, minimum=0)
        stop = self.burn_in_stop
        if stop is not None and (not is_number(stop) or not stop > 1):
            raise ValueError(
                f"`burn_in_stop` must be greater than 1, the optimum itself, got {got(stop)}. For no burn-in give "
                "`burn_in=0`, for no early end None."
            )

    def draw(
        self,
        optimal: np.ndarray,
        optimal_loss: float,
        target: np.ndarray,
        rng: np.random.Generator,
        groups: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return a matrix with the margins of ``optimal``; other arguments as in :class:`RectangleMoves`."""
        # an optimum that meets the target has no multiple to stop at
        stop_at = self.burn_in_stop**2 * optimal_loss if self.burn_in_stop and optimal_loss > 0 else np.inf
        chosen = self.moves.burn_in(optimal, target, self.burn_in, rng, stop_at, groups)
        return self.moves.search(chosen, target, self.search, rng, groups)


class DrawsRandomSolution:
    """A partitioner with the arguments of Algorithm 3."""

    burn_in: int
    search: int
    step: float
    step_rule: StepRule
    burn_in_stop: float | None

    @property
    def random_solution(self) -> RandomSolution:
        """Algorithm 3 with this partitioner's arguments."""
        moves = RectangleMoves(self.step, self.step_rule)
        return RandomSolution(moves, self.burn_in, self.search, self.burn_in_stop)


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
