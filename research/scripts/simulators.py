"""Rounds of Flower's simulation beside those of the plain loop: the same clients, network, SGD and rounds.

    PYTHONPATH=benchmarks OMP_NUM_THREADS=1 python research/scripts/simulators.py W1 W2

It runs on one machine with two Ray actors, and is no dependency of the project: `pip install "flwr[simulation]"`.
``benchmarks/peers.py`` measures simulators that train in one process.
"""

from __future__ import annotations

import argparse
import statistics


def main() -> None:
    """Print the median of the paired ratios, and their range."""
    from federations import ROUNDS
    from peer_flower import train_flower
    from peer_rounds import Rounds
    from plain_loop import start_loop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=["W1", "W2", "W3"])
    options = parser.parse_args()
    for name in options.workloads:
        figures = train_flower(name, 2, ROUNDS[name] + 1, Rounds(start_loop(name)))
        ratios = sorted(ours / plain for ours, plain in figures["pairs"][1:])
        print(f"{name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", figures["used"])


if __name__ == "__main__":
    main()
