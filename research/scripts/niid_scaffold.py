"""SCAFFOLD with two classes a client in plain loops of torch: why does Flower's niid_bench fail for two of three seeds?

    python research/scripts/niid_scaffold.py [--methods flower] [--seeds 0 1 2] [--rounds 8] [--partition flower]

Fashion-MNIST, ten clients of two classes, ten local epochs in batches of 64, SGD with learning rate 0.01, momentum 0.9
and weight decay 1e-5, a CNN of 44,426 weights. The methods:

* ``fedavg``: no correction.
* ``flower``: SGD's step, then learning rate times (c - c_i) is taken off; c_i is renewed by the update over learning
  rate and steps (commit 09d72eb, before the README's numbers, and since then).
* ``flower, by samples``: the same, but over learning rate and samples times epochs (commit 8c0e0997, never merged).
* ``here``: the correction is part of the gradient, and goes through the momentum; c_i is renewed by the update over
  learning rate and the reach of the steps, the |a| of FedNova.

``--partition flower`` is theirs when the README got its numbers (numpy's RandomState), ``flower, later`` that of
today's code (numpy's default_rng), with seed 42 unless ``--partition-seed`` says otherwise. Each row of the file is a
round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torchvision.datasets import MNIST, FashionMNIST

from fl_lightning.models import ConvNetClassifier
from fl_lightning.partitioners import PathologicalPartitioner

CLIENTS = 10
EPOCHS = 10
BATCH = 64
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-5
KEYS = ["data", "classes", "partition", "partition_seed", "method", "lr", "seed", "round"]
METHODS = ["fedavg", "flower", "flower, by samples", "here"]


def flower_partition(classes: np.ndarray, per_client: int, seed: int, is_later: bool) -> list[np.ndarray]:
    """Return the samples of each client: class i and others drawn; a class is divided equally among its holders."""
    rng: np.random.Generator | np.random.RandomState = np.random.RandomState(seed)
    if is_later:
        rng = np.random.default_rng(seed)
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


class Flat:
    """A network whose weights, and gradients, lie in one vector each."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        self.gradient = torch.zeros_like(self.weights)
        begin = 0
        for parameter in model.parameters():
            end = begin + parameter.numel()
            parameter.data = self.weights[begin:end].view_as(parameter)
            parameter.grad = self.gradient[begin:end].view_as(parameter)
            begin = end

    def backward(self, images: Tensor, classes: Tensor) -> None:
        """Fill the gradient."""
        self.gradient.zero_()
        nn.functional.cross_entropy(self.model(images), classes).backward()

    @torch.no_grad()
    def accuracy(self, images: Tensor, classes: Tensor) -> float:
        """Return the share of right answers."""
        right = 0
        for some, labels in zip(images.split(2000), classes.split(2000), strict=True):
            right += int((self.model(some).argmax(1) == labels).sum())
        return right / len(classes)


def reach(steps: int) -> float:
    """Return |a|: the sum of how far each step's gradient goes, by the end, with momentum."""
    return sum((1 - MOMENTUM**left) / (1 - MOMENTUM) for left in range(1, steps + 1))


def train(
    net: Flat,
    images: Tensor,
    classes: Tensor,
    correction: Tensor | None,
    method: str,
    lr: float,
    order: torch.Generator,
) -> int:
    """Train one client from `net.weights`; return the number of steps."""
    velocity = torch.zeros_like(net.weights)
    steps = 0
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(classes), generator=order).split(BATCH):
            net.backward(images[batch], classes[batch])
            gradient = net.gradient.add(net.weights, alpha=WEIGHT_DECAY)
            if correction is not None and method == "here":
                gradient += correction
            velocity = velocity.mul_(MOMENTUM).add_(gradient)
            net.weights.sub_(velocity, alpha=lr)
            if correction is not None and method != "here":
                net.weights.sub_(correction, alpha=lr)
            steps += 1
    return steps


def run(options: argparse.Namespace, method: str, seed: int) -> Iterator[dict[str, object]]:
    """Yield what is known after each round, until the weights are no longer finite."""
    images, classes, test_images, test_classes = options.samples
    torch.manual_seed(seed)
    module = ConvNetClassifier(in_channels=1, image_size=28, channels=[6, 16], hidden=[120, 84])
    net = Flat(module)
    order = torch.Generator().manual_seed(seed)
    if options.partition != "here":
        is_later = options.partition == "flower, later"
        clients = flower_partition(classes.numpy(), options.classes, options.partition_seed, is_later)
    else:
        partitioner = PathologicalPartitioner(CLIENTS, num_classes_per_partition=options.classes, seed=seed)
        clients = list(partitioner(classes.numpy()).indices)
    is_scaffold = method != "fedavg"
    server = torch.zeros_like(net.weights)
    own = torch.zeros(CLIENTS, len(net.weights))
    model = net.weights.clone()
    for index in range(options.rounds):
        mean = torch.zeros_like(model)
        change = torch.zeros_like(model)
        for client, indices in enumerate(clients):
            samples = torch.as_tensor(indices)
            net.weights.copy_(model)
            correction = server - own[client] if is_scaffold else None
            steps = train(net, images[samples], classes[samples], correction, method, options.lr, order)
            share = len(samples) / len(classes)
            mean += share * net.weights
            if is_scaffold:
                by = {"flower": steps, "flower, by samples": EPOCHS * len(samples), "here": reach(steps)}[method]
                renewed = own[client] - server + (model - net.weights) / (options.lr * by)
                change += share * (renewed - own[client])
                own[client] = renewed
        model = mean
        server = server + change
        net.weights.copy_(model)
        yield {
            "data": options.data,
            "classes": options.classes,
            "partition": options.partition,
            "partition_seed": seed if options.partition == "here" else options.partition_seed,
            "method": method,
            "lr": options.lr,
            "seed": seed,
            "round": index + 1,
            "test_acc": round(net.accuracy(test_images, test_classes), 4),
            "norm_of_model": float(f"{float(model.norm()):.4g}"),
            "norm_of_c": float(f"{float(server.norm()):.4g}"),
            "largest_correction": float(f"{float((server - own).norm(dim=1).max()):.4g}"),
        }
        if not bool(model.isfinite().all()):
            break


def add(row: dict[str, object], path: Path) -> None:
    """Add a row to a file, or replace it."""
    known = [pd.read_csv(path)] if path.exists() else []
    together = pd.concat([*known, pd.DataFrame([row])]).drop_duplicates(KEYS, keep="last").sort_values(KEYS)
    together.to_csv(path, index=False, lineterminator="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["flower"], choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--partition", choices=["flower", "flower, later", "here"], default="flower")
    parser.add_argument("--partition-seed", type=int, default=42, help="seed of Flower's partition")
    parser.add_argument("--data", choices=["Fashion", "MNIST"], default="Fashion")
    parser.add_argument("--classes", type=int, default=2, help="classes of a client")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--folder", default="data", help="folder that has the data sets")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    kind = FashionMNIST if options.data == "Fashion" else MNIST
    training = kind(options.folder, train=True)
    test = kind(options.folder, train=False)
    options.samples = (
        training.data.unsqueeze(1) / 255,
        training.targets,
        test.data.unsqueeze(1) / 255,
        test.targets,
    )
    for seed in options.seeds:
        for method in options.methods:
            begin = time.process_time()
            for row in run(options, method, seed):
                print(f"{row}, {time.process_time() - begin:.0f} s", flush=True)
                if options.output:
                    add(row, options.output)


if __name__ == "__main__":
    main()
