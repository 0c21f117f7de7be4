"""FedLab's top-k of models in a plain loop of torch: how much does 61.25 % for 10 % owe to chance?

    python research/scripts/fedlab_topk.py [--shares .1] [--seeds 0 1 2] [--partition fedlab] [--cohorts fedlab]
    python research/scripts/fedlab_topk.py --curve runs/published_compression/cells/ID/curve.csv --output FILE

What FedLab's notebook does: 100 clients by class-wise Dir(.5), ten of them in each of 200 rounds; each takes five steps
of SGD with learning rate 0.1 on all of its data, keeps the ceil(share * 199,210) largest weights of its model, zero
elsewhere, and the server takes the plain mean. Nothing of the library's federated code is used, except that
``--partition here`` and ``--cohorts here`` take its partition and its clients of each round, so that the two can be
compared round by round. Each row of the file is every tenth round, with its accuracy on the test set and the shares of
each layer's weights that are not zero.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torchvision.datasets import MNIST

from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import ClasswiseDirichletPartitioner
from fl_lightning.seeding import Stream, numpy_generator

CLIENTS = 100
PER_ROUND = 10
STEPS = 5
LEARNING_RATE = 0.1
KEYS = ["share", "partition", "cohorts", "seed", "round"]


def read(folder: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images in [0, 1], shape (N, 784), and classes, of the training and the test set."""
    train = MNIST(folder, train=True)
    test = MNIST(folder, train=False)
    return train.data.flatten(1) / 255, train.targets, test.data.flatten(1) / 255, test.targets


def fedlab_partition(classes: np.ndarray, seed: int, alpha: float = 0.5) -> list[np.ndarray]:
    """Return the samples of each client as FedLab draws them, from numpy's global generator.

    Each class is shuffled and divided in proportions from Dir(alpha); who has N / K samples gets no more. All is drawn
    again until everybody has ten samples.
    """
    np.random.seed(seed)
    smallest = 0
    while smallest < 10:
        clients: list[list[int]] = [[] for _ in range(CLIENTS)]
        for label in range(10):
            samples = np.flatnonzero(classes == label)
            np.random.shuffle(samples)
            shares = np.random.dirichlet(np.full(CLIENTS, alpha))
            has_room = np.array([len(client) < len(classes) / CLIENTS for client in clients])
            shares = shares * has_room
            ends = (np.cumsum(shares / shares.sum()) * len(samples)).astype(int)[:-1]
            for client, part in zip(clients, np.split(samples, ends), strict=True):
                client.extend(part.tolist())
        smallest = min(map(len, clients))
    return [np.array(client) for client in clients]


def largest(weights: Tensor, share: float) -> Tensor:
    """Return the weights of the largest magnitude, zero elsewhere; all layers together."""
    number = math.ceil(share * len(weights))
    kept = weights.abs().topk(number).indices
    result = torch.zeros_like(weights)
    result[kept] = weights[kept]
    return result


def run(options: argparse.Namespace, share: float, seed: int) -> pd.DataFrame:
    """Return the accuracy on the test set after every tenth round, and the layers' shares of weights not zero."""
    images, classes, test_images, test_classes = options.data
    L.seed_everything(seed, verbose=False)
    model = MLPClassifier(in_features=784, hidden=(200, 200), num_classes=10).layers
    if options.partition == "fedlab":
        clients = fedlab_partition(classes.numpy(), options.partition_seed)
    else:
        clients = list(ClasswiseDirichletPartitioner(CLIENTS, 0.5, seed=seed)(classes.numpy()).indices)
    own = np.random.default_rng(seed)
    worker = copy.deepcopy(model)
    layers = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    rows = []
    for index in range(options.rounds):
        draw = numpy_generator(seed, Stream.SAMPLING, index) if options.cohorts == "here" else own
        cohort = draw.choice(np.arange(CLIENTS), size=PER_ROUND, replace=False)
        start = nn.utils.parameters_to_vector(model.parameters()).detach()
        total = torch.zeros_like(start)
        for client in cohort:
            nn.utils.vector_to_parameters(start.clone(), worker.parameters())
            optimizer = torch.optim.SGD(worker.parameters(), lr=LEARNING_RATE)
            samples = torch.as_tensor(clients[client])
            for _ in range(STEPS):
                optimizer.zero_grad()
                nn.functional.cross_entropy(worker(images[samples]), classes[samples]).backward()
                optimizer.step()
            weights = nn.utils.parameters_to_vector(worker.parameters()).detach()
            total += largest(weights, share) if share < 1 else weights
        nn.utils.vector_to_parameters(total / PER_ROUND, model.parameters())
        if (index + 1) % 10:
            continue
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_classes).double().mean().item()
        row = {
            "share": share,
            "partition": options.partition,
            "cohorts": options.cohorts,
            "seed": seed,
            "round": index + 1,
            "test_acc": round(accuracy, 4),
        }
        for number, weight in enumerate(layers):
            row[f"layer_{number + 1}"] = round((weight != 0).double().mean().item(), 4)
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--partition", choices=["fedlab", "here"], default="fedlab")
    parser.add_argument("--partition-seed", type=int, default=42, help="seed of FedLab's partition")
    parser.add_argument("--cohorts", choices=["fedlab", "here"], default="fedlab")
    parser.add_argument("--folder", default="data", help="folder that has MNIST")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--curve", type=Path, help="curve.csv of the library's fit: only take its scores over")
    options = parser.parse_args()
    if options.curve:
        curve = pd.read_csv(options.curve)[["round", "val_acc"]].dropna().rename(columns={"val_acc": "test_acc"})
        curve.round(4).to_csv(options.output, index=False, lineterminator="\n")
        return
    options.data = read(options.folder)
    for share in options.shares:
        for seed in options.seeds:
            begin = time.process_time()
            rows = run(options, share, seed)
            seconds = time.process_time() - begin
            scores = rows["test_acc"]
            print(f"{share} seed {seed}: last {scores.iloc[-1]}, best {scores.max()}, {seconds:.0f} s", flush=True)
            if options.output:
                known = [pd.read_csv(options.output)] if options.output.exists() else []
                together = pd.concat([*known, rows]).drop_duplicates(KEYS, keep="last").sort_values(KEYS)
                together.to_csv(options.output, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
