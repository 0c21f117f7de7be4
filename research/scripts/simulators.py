"""Rounds of other frameworks beside those of the plain loop: the same clients, network, SGD and rounds.

    PYTHONPATH=benchmarks OMP_NUM_THREADS=1 python research/scripts/simulators.py pfl W1 W2 W3
    PYTHONPATH=benchmarks OMP_NUM_THREADS=1 python research/scripts/simulators.py flower W1 W2

Each runs in its own best mode on one machine: pfl in one process, Flower's simulation with two Ray actors. Neither is a
dependency of the project: `pip install pfl`, `pip install "flwr[simulation]"`.
"""

from __future__ import annotations

import argparse
import statistics


def main() -> None:
    """Print the median of the paired ratios, and their range."""
    from federations import ROUNDS
    from peer_rounds import Rounds
    from plain_loop import start_loop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["pfl", "flower"])
    parser.add_argument("workloads", nargs="+", choices=["W1", "W2", "W3"])
    options = parser.parse_args()
    for name in options.workloads:
        rounds = Rounds(start_loop(name))
        if options.peer == "pfl":
            from peer_pfl import train_pfl

            figures = train_pfl(name, ROUNDS[name] + 1, rounds)
        else:
            from peer_flower import train_flower

            figures = train_flower(name, 2, ROUNDS[name] + 1, rounds)
        ratios = sorted(ours / plain for ours, plain in figures["pairs"][1:])
        print(f"{name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", figures["used"])


if __name__ == "__main__":
    main()
