"""Partitions among ten clients as the code of NIID-Bench, Flower and FedBench draws them: each client's samples.

How skewed those of CIFAR-10 are:

    python research/scripts/niid_partition.py [--folder data]

`research/compiled/niid_bench.yaml` and `niid_flower.yaml` train on them; `research/published.md` has the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torchvision.datasets import CIFAR10

from fl_lightning.partitioners import ClasswiseDirichletPartitioner, Partitioner, partition_statistics

RESULTS = Path(__file__).parents[1] / "results" / "niid_partition.csv"
CLIENTS = 10
Generator = np.random.Generator | np.random.RandomState


class NIIDBenchPartitioner(Partitioner):
    """NIID-Bench's ``noniid-labeldir``, which Flower's niid_bench had until November 2023.

    NIID-Bench's code has seed 2020 for all runs until April 2022, Flower's has 42.
    """

    def __init__(self, num_clients: int, alpha: float, seed: int) -> None:
        super().__init__(num_clients, seed)
        self.alpha = alpha

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client."""
        return by_dirichlet(classes, self.num_clients, self.alpha, np.random.RandomState(self.seed))


def by_dirichlet(classes: np.ndarray, num_clients: int, alpha: float, rng: Generator) -> list[np.ndarray]:
    """Return the samples of each client: each class by Dir(alpha), among the clients with less than an equal share.

    All is drawn again until every client has ten samples.
    """
    while True:
        clients = [np.array([], dtype=int)] * num_clients
        for label in range(classes.max() + 1):
            samples = np.flatnonzero(classes == label)
            rng.shuffle(samples)
            has_room = [len(held) < len(classes) / num_clients for held in clients]
            shares = rng.dirichlet([alpha] * num_clients) * has_room
            ends = (np.cumsum(shares / shares.sum()) * len(samples)).astype(int)[:-1]
            parts = np.split(samples, ends)
            clients = [np.concatenate(pair) for pair in zip(clients, parts, strict=True)]
        if min(map(len, clients)) >= 10:
            return clients


def by_fedbench(classes: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the training samples of each client by Dir(.5): a tenth of what it has is for validation."""
    kept = []
    for held in by_dirichlet(classes, CLIENTS, 0.5, np.random.default_rng(seed)):
        order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed)).numpy()
        kept.append(held[order[: len(held) - len(held) // 10]])
    return kept


def by_flower(classes: np.ndarray, per_client: int, rng: Generator) -> list[np.ndarray]:
    """Return the samples of each client: class i and others drawn; a class is divided equally among its holders."""
    held: list[list[int]] = []
    for client in range(CLIENTS):
        own = [client % 10]
        while len(own) < per_client:
            label = int(rng.choice(10, 1)[0])
            if label not in own:
                own.append(label)
        held.append(own)
    samples: list[list[int]] = [[] for _ in range(CLIENTS)]
    for label in range(10):
        holders = [client for client in range(CLIENTS) if label in held[client]]
        indices = np.flatnonzero(classes == label)
        rng.shuffle(indices)
        for client, part in zip(holders, np.array_split(indices, len(holders)), strict=True):
            samples[client].extend(part.tolist())
    return [np.array(part) for part in samples]


def main() -> None:
    """Write how skewed the partitions are, beside 1,000 of the library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="data", help="folder that has CIFAR-10")
    options = parser.parse_args()
    classes = np.array(CIFAR10(options.folder, train=True).targets)
    known: dict[str, Partitioner] = {
        "NIID-Bench": NIIDBenchPartitioner(CLIENTS, alpha=0.5, seed=2020),
        "Flower": NIIDBenchPartitioner(CLIENTS, alpha=0.5, seed=42),
    }
    here = [ClasswiseDirichletPartitioner(CLIENTS, alpha=0.5, seed=seed) for seed in range(1000)]
    draws = [partition_statistics(partitioner(classes), classes).c_score for partitioner in here]
    for seed in range(3):
        known[f"here, seed {seed}"] = here[seed]
    rows = []
    for whose, partitioner in known.items():
        found = partition_statistics(partitioner(classes), classes)
        rows.append(
            {
                "whose": whose,
                "seed": partitioner.seed,
                "smallest": found.min,
                "largest": found.max,
                "c_score": round(found.c_score, 4),
                "milder_draws": float(np.mean(np.array(draws) < found.c_score)),
            }
        )
    pd.DataFrame(rows).to_csv(RESULTS, index=False, lineterminator="\n")
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
