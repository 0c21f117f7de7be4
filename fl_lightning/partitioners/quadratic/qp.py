"""Quadratic-programming partition: client sizes and class mixes drawn independently, then reconciled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.partitioners.base import Partitioner, check_enough, deal
from fl_lightning.partitioners.quadratic.draws import AboveOne, DrawsRandomSolution, StepRule, draw_sizes
from fl_lightning.partitioners.quadratic.rounding import RoundingMethod, round_columns, round_margins
from fl_lightning.partitioners.quadratic.solver import solve_transport_qp
from fl_lightning.settings import Count, Natural, Positive
from fl_lightning.vectors import to_array


@dataclass(frozen=True, eq=False)
class QPSolution:
    """The stages of a QP partition. Matrices have shape (num_clients, num_classes) and count samples.

    Attributes:
        target: Drawn sizes times drawn class mixes; rows sum to the sizes, columns do not sum to the class counts.
        optimal: The QP's optimum, float64.
        chosen: The random solution that Algorithm 3 ended with, float64.
        counts: ``chosen`` in whole samples, int64.
        optimal_loss: Squared distance of ``optimal`` from ``target``, in samples squared.
        chosen_loss: The same for ``chosen``; at least ``optimal_loss``.

    Example:
        >>> solution = QPPartitioner(4, burn_in=1000, search=1000, seed=0).solve([20, 20, 20])
        >>> solution.counts.shape, solution.counts.sum().item()
        ((4, 3), 60)
    """

    target: np.ndarray
    optimal: np.ndarray
    chosen: np.ndarray
    counts: np.ndarray
    optimal_loss: float
    chosen_loss: float


@dataclass(eq=False)
class QPPartitioner(DrawsRandomSolution, Partitioner):
    """The partition of RADFed's experiments (Xue et al. 2021, section IV-A; eq. (44)-(48)).

    1. Client sizes are drawn from Dir(size_alpha) and, independently, each client's class mix from Dir(class_alpha).
    2. Sizes and class totals are both fixed, so the drawn mixes cannot all be met: a quadratic program finds the
       nearest matrix that has the drawn sizes as row sums and the class totals as column sums.
    3. Algorithm 3 moves that optimum at random: ``burn_in`` moves, then ``search`` moves of which the best is kept.
    4. The result is rounded to whole samples.
    5. Client after client takes its samples of each class in the order of the data set, and its samples are shuffled.

    Every sample is given to exactly one client.

    Equations are numbered as in ``docs/references.md``.

    Args:
        num_clients: Number of clients, T in the paper.
        size_alpha: mu, concentration of the client sizes; large values make them equal.
        class_alpha: lambda, concentration of the class mixes; near 0 gives one class to a client.
        burn_in: P, moves of the burn-in; 0 switches it off.
        search: Q, moves of the search; 0 keeps the result of the burn-in. With both 0 the QP's optimum is taken.
        step: xi, the size of a move.
        step_rule: ``"relative"`` takes ``step`` as a share of the smaller of the two entries that lose, as the original
            code does. ``"absolute"`` takes it as a number of samples, as the paper writes it; steps of 0.002 samples
            then change hardly anything.
        burn_in_stop: Ends the burn-in once the distance to the target, the square root of the loss, is this multiple
            of the optimum's (the original code: 1.1). ``None`` makes all ``burn_in`` moves.
        rounding: ``"margins"`` keeps both sizes and class totals exactly. ``"columns"`` is the original code's rule,
            which lets sizes drift by a few samples.
        seed: Seed of all draws.

    Raises:
        ValueError: If an argument is out of range; on call, if no sizes with at least one sample each were drawn.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> QPPartitioner(4, burn_in=1000, search=1000, seed=0)(labels).num_clients
        4
    """

    num_clients: Count
    size_alpha: Positive = 1.0
    class_alpha: Positive = 0.1
    burn_in: Natural = 100_000
    search: Natural = 500_000
    step: Positive = 0.002
    step_rule: StepRule = "relative"
    burn_in_stop: AboveOne | None = None
    rounding: RoundingMethod = "margins"
    seed: Natural = 0

    needs_classes = True

    def solve(self, class_counts: np.ndarray) -> QPSolution:
        """Return the number of samples of each class for each client, with every stage.

        Args:
            class_counts: Samples of each class, C_k: integers of at least 1, shape (num_classes,).

        Raises:
            ValueError: If the counts are invalid, fewer samples than clients, or no valid sizes were drawn.
        """
        class_counts = to_array("class_counts", class_counts)
        is_whole = class_counts.ndim == 1 and class_counts.dtype.kind in "iu"
        if not is_whole or class_counts.min(initial=1) < 1:
            raise ValueError(
                f"`class_counts` must be whole numbers of at least 1, the samples of each class, got {class_counts}."
            )
        check_enough(self.num_clients, int(class_counts.sum()))
        return self._solve(class_counts.astype(np.int64), self.generator())

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        counts = self._solve(np.bincount(classes), rng).counts
        return deal(classes, counts, rng, mix=False)

    def _solve(self, class_counts: np.ndarray, rng: np.random.Generator) -> QPSolution:
        num_samples = int(class_counts.sum())
        concentrations = np.full(len(class_counts), self.class_alpha)
        sizes = draw_sizes(self.num_clients, self.size_alpha, num_samples, rng)
        mixes = rng.dirichlet(concentrations, size=self.num_clients)
        target = mixes * sizes[:, None]
        optimal = solve_transport_qp(target, sizes, class_counts)
        optimal_loss = _loss(optimal, target)
        chosen = self.draw_solution(optimal, optimal_loss, target, rng)
        counts = round_margins(chosen) if self.rounding == "margins" else round_columns(chosen, rng)
        return QPSolution(
            target=target,
            optimal=optimal,
            chosen=chosen,
            counts=counts,
            optimal_loss=optimal_loss,
            chosen_loss=_loss(chosen, target),
        )


def _loss(alpha: np.ndarray, target: np.ndarray) -> float:
    return float(((alpha - target) ** 2).sum())
