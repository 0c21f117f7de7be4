"""How long the QP partition takes, and what it gives, at the size of RADFed's CIFAR-10 experiments.

    python research/scripts/qp_partition.py --seeds 3

60,000 samples of 10 equally frequent classes, 100 clients, sizes Dir(1), class mixes Dir(0.1), 100,000 burn-in moves
and 500,000 search moves. The paper reports for its own draw: min 2, max 2,850, mean 600, standard deviation 605.85,
C-score 1.286 (Xue et al. 2021, Table I). ``optimum`` and ``chosen`` are squared distances
from the drawn target, in samples squared.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fl_lightning.partitioners import QPPartitioner, partition_statistics
from fl_lightning.partitioners.quadratic.solver import solve_transport_qp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, 0, 1, ...")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=60_000)
    args = parser.parse_args()

    labels = np.arange(args.samples) % args.classes
    # the first call imports cvxpy, which takes longer than a partition
    solve_transport_qp(np.array([[5.0, 0.0], [0.0, 5.0]]), np.array([5.0, 5.0]), np.array([6.0, 4.0]))
    print(f"{args.samples:,} samples, {args.classes} classes, {args.clients} clients")
    print("seed  seconds  margins      optimum       chosen  ratio  C-score     mean       sd   min     max")
    for seed in range(args.seeds):
        report(labels, QPPartitioner(args.clients, size_alpha=1.0, class_alpha=0.1, seed=seed))


def report(labels: np.ndarray, partitioner: QPPartitioner) -> None:
    start = time.perf_counter()
    partition = partitioner(labels)
    seconds = time.perf_counter() - start
    class_counts = np.bincount(labels)
    solution = partitioner.solve(class_counts)
    sizes = np.rint(solution.target.sum(axis=1))
    exact = (solution.counts.sum(axis=1) == sizes).all() and (solution.counts.sum(axis=0) == class_counts).all()
    statistics = partition_statistics(partition, labels)
    print(
        f"{partitioner.seed:>4}  {seconds:>7.2f}  {'exact' if exact else 'WRONG':>7}  {solution.optimal_loss:>11,.0f}  "
        f"{solution.chosen_loss:>11,.0f}  {solution.chosen_loss / solution.optimal_loss:>5.3f}  "
        f"{statistics.c_score:>7.3f}  {statistics.mean:>7.1f}  {statistics.std:>7.1f}  {statistics.min:>4}  "
        f"{statistics.max:>6,}"
    )


if __name__ == "__main__":
    main()
