"""SCAFFOLD with two classes a client in plain loops of torch: why does Flower's niid_bench fail for two of three seeds?

    python research/scripts/niid_scaffold.py [--methods flower] [--seeds 0 1 2] [--rounds 8] [--partition flower]
    python research/scripts/niid_scaffold.py --methods here library --order here --seeds 0 --rounds 4

FedBench's fits take ``--methods fedbench --clip 1 --partition fedbench --data "MNIST, standardized"``.

Fashion-MNIST, ten clients of two classes, ten local epochs in batches of 64, SGD with learning rate 0.01, momentum 0.9
and weight decay 1e-5, a CNN of 44,426 weights. The methods:

* ``fedavg``: no correction.
* ``fednova``: no correction; each update is divided by the reach of its steps, and their mean multiplied by that of the
  reaches, as in their ``strategy.py`` and here.
* ``flower``: SGD's step, then learning rate times (c - c_i) is taken off; c_i is renewed by the update over learning
  rate and steps (commit 09d72eb, before the README's numbers, and since then).
* ``flower, by samples``: the same, but over learning rate and samples times epochs (commit 8c0e0997, never merged).
* ``here``: the correction is part of the gradient, and goes through the momentum; c_i is renewed by the update over
  learning rate and the reach of the steps, the |a| of FedNova.
* ``fedbench``: as `flower`, but by FedBench's code (0.1.3), where every client's c_i is zero in each round, and c grows
  by the update over learning rate and steps, with the update's own sign.
* ``library``: no loop, but the library's own fit, on the same partition and from the same start.

``--partition flower`` is theirs when the README got its numbers (numpy's RandomState), ``flower, later`` that of
today's code (numpy's default_rng), with seed 42 unless ``--partition-seed`` says otherwise; a number below zero stands
for each fit's own seed. ``fedbench`` is FedBench's: classes by Dir(.5), as in Flower's code today, and nine tenths of a
client's samples. ``--order here`` gives the loops the order of samples that the library draws.

``--missing 1`` lets the first client fail in the first round. Flower's control variates begin with the weights: c with
those of the first model, c_i with those of the first model that the client gets. While all clients train in the first
round that is the same as zero; if one does not, it is not. ``--found 1`` lets a run begin in a folder in which an
earlier run, from another start, has left control variates after one round: Flower's clients take what they find there,
while its server begins anew.

``--steps c++`` gives the same as torch to rounding, in less time; it needs g++. Each row of the file that
``--output`` names is a round, each row of that of ``--clients`` is a client in a round of a loop.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lightning as L
import numpy as np
import pandas as pd
import torch
from niid_network import compiled
from niid_partition import CLIENTS, by_fedbench, by_flower
from torch import Tensor, nn
from torchvision.datasets import MNIST, FashionMNIST

from fl_lightning import Scaffold
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import FashionMNISTDataModule, MNISTDataModule
from fl_lightning.models import ConvNetClassifier
from fl_lightning.partitioners import ExplicitPartitioner, PathologicalPartitioner
from fl_lightning.seeding import Stream, torch_generator

EPOCHS = 10
BATCH = 64
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-5
FIT = [
    "data",
    "classes",
    "partition",
    "partition_seed",
    "method",
    "steps",
    "order",
    "most",
    "missing",
    "found",
    "lr",
    "clip",
    "seed",
]
PARTITIONS = ["flower", "flower, later", "fedbench", "here"]
METHODS = ["fedavg", "fednova", "flower", "flower, by samples", "fedbench", "here", "library"]


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


def significant(value: float) -> float:
    """Return a number with four digits."""
    return float(f"{value:.4g}")


def network(seed: int) -> ConvNetClassifier:
    """Return the network at the start of a seed's fits."""
    torch.manual_seed(seed)
    return ConvNetClassifier(
        in_channels=1,
        image_size=28,
        channels=[6, 16],
        hidden=[120, 84],
        lr=0.01,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
    )


def partition(options: argparse.Namespace, classes: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the samples of each client."""
    if options.partition == "here":
        partitioner = PathologicalPartitioner(CLIENTS, num_classes_per_partition=options.classes, seed=seed)
        clients = list(partitioner(classes).indices)
    elif options.partition == "fedbench":
        clients = by_fedbench(classes, partition_seed(options, seed))
    elif options.partition == "flower":
        clients = by_flower(classes, options.classes, np.random.RandomState(partition_seed(options, seed)))
    else:
        clients = by_flower(classes, options.classes, np.random.default_rng(partition_seed(options, seed)))
    if options.most:
        clients = [samples[:: math.ceil(len(samples) / options.most)] for samples in clients]
    return clients


def partition_seed(options: argparse.Namespace, seed: int) -> int:
    """Return the seed of a fit's partition."""
    return seed if options.partition == "here" or options.partition_seed < 0 else options.partition_seed


def pixels(dataset: MNIST, data: str) -> Tensor:
    """Return pixels in [0, 1]; those of standardized data with mean 0 and deviation 1."""
    result: Tensor = dataset.data.unsqueeze(1) / 255
    if data == "MNIST, standardized":
        result = (result - 0.1307) / 0.3081
    return result


class Work(NamedTuple):
    """One client's work in a round: its samples, their order in each epoch, and its correction, if there is any."""

    images: Tensor
    classes: Tensor
    order: Tensor
    correction: Tensor | None


Train = Callable[[Flat, Work, str, argparse.Namespace], float]


def train_by_torch(net: Flat, work: Work, method: str, options: argparse.Namespace) -> float:
    """Train one client from `net.weights` on; return the longest gradient of the loss."""
    images, classes, order, correction = work
    velocity = torch.zeros_like(net.weights)
    longest = 0.0
    for epoch in order:
        for batch in epoch.split(BATCH):
            net.backward(images[batch], classes[batch])
            length = float(net.gradient.norm())
            longest = max(longest, length)
            if options.clip and length > options.clip:
                net.gradient *= options.clip / length
            gradient = net.gradient.add(net.weights, alpha=WEIGHT_DECAY)
            if correction is not None and method == "here":
                gradient += correction
            velocity = velocity.mul_(MOMENTUM).add_(gradient)
            net.weights.sub_(velocity, alpha=options.lr)
            if correction is not None and method != "here":
                net.weights.sub_(correction, alpha=options.lr)
    return longest


def compiled_train() -> Train:
    """Return the same as `train_by_torch`, to rounding, from the C++ beside this file."""
    function = compiled(1, 28).train
    number, real = ctypes.c_int, ctypes.c_float
    function.restype = real
    function.argtypes = [*[ctypes.c_void_p] * 4, number, number, ctypes.c_void_p, ctypes.c_bool, *[real] * 4]

    def train(net: Flat, work: Work, method: str, options: argparse.Namespace) -> float:
        images = work.images.contiguous()
        correction = torch.zeros_like(net.weights) if work.correction is None else work.correction
        arrays = [tensor.data_ptr() for tensor in (net.weights, images, work.classes, work.order)]
        settings = (method == "here", options.lr, MOMENTUM, WEIGHT_DECAY, options.clip)
        return float(function(*arrays, len(work.classes), EPOCHS, correction.data_ptr(), *settings))

    return train


def loop(
    options: argparse.Namespace, method: str, seed: int
) -> Iterator[tuple[dict[str, float], list[dict[str, float]]]]:
    """Yield what is known of each round and of each client in it, until the weights are no longer finite."""
    images, classes, test_images, test_classes = options.samples
    net = Flat(network(seed))
    first = net.weights.clone()
    order = torch.Generator().manual_seed(seed)
    clients = partition(options, classes.numpy(), seed)
    train = compiled_train() if options.steps == "c++" else train_by_torch
    is_scaffold = method not in ("fedavg", "fednova")
    model = net.weights.clone()
    server = torch.zeros_like(model)
    own = torch.zeros(CLIENTS, len(model))
    if options.found:
        model = Flat(network(seed + 100)).weights
    if options.missing:
        server = model.clone()
    has_begun = [not options.missing] * CLIENTS
    # The rounds of an earlier run come before round 0.
    for index in range(-options.found, options.rounds):
        if index == 0 and options.found:
            model = first.clone()
            server = first.clone()
        mean = torch.zeros_like(model)
        direction = torch.zeros_like(model)
        mean_reach = 0.0
        change = torch.zeros_like(model)
        details = []
        absent = options.missing if index == 0 else 0
        samples_of_round = sum(map(len, clients[absent:]))
        for client in range(absent, CLIENTS):
            samples = torch.as_tensor(clients[client])
            if options.order == "here":
                order = torch_generator(seed, Stream.SHUFFLE, index, client)
            if not has_begun[client]:
                own[client] = model
                has_begun[client] = True
            net.weights.copy_(model)
            correction = server - own[client] if is_scaffold else None
            epochs = torch.stack([torch.randperm(len(samples), generator=order) for _ in range(EPOCHS)])
            longest = train(net, Work(images[samples], classes[samples], epochs, correction), method, options)
            steps = EPOCHS * math.ceil(len(samples) / BATCH)
            share = len(samples) / samples_of_round
            mean += share * net.weights
            own_reach = reach(steps)
            direction += share * (model - net.weights) / own_reach
            mean_reach += share * own_reach
            details.append(
                {
                    "client": client,
                    "samples": len(samples),
                    "correction": 0.0 if correction is None else significant(float(correction.norm())),
                    "longest_gradient": significant(longest),
                    "way": significant(float((net.weights - model).norm())),
                    "norm_of_model": significant(float(net.weights.norm())),
                }
            )
            if method == "fedbench":
                change += share * (net.weights - model) / (options.lr * steps)
            elif is_scaffold:
                by = {"flower": steps, "flower, by samples": EPOCHS * len(samples), "here": own_reach}[method]
                renewed = own[client] - server + (model - net.weights) / (options.lr * by)
                change += share * (renewed - own[client])
                own[client] = renewed
        model = model - mean_reach * direction if method == "fednova" else mean
        server = server + change * (CLIENTS - absent) / CLIENTS
        net.weights.copy_(model)
        if index < 0:
            continue
        row = {
            "test_acc": round(net.accuracy(test_images, test_classes), 4),
            "norm_of_model": significant(float(model.norm())),
            "norm_of_c": significant(float(server.norm())),
            "largest_correction": significant(float((server - own).norm(dim=1).max())),
        }
        yield row, details
        if not bool(model.isfinite().all()):
            break


class Watch(L.Callback):
    """Notes what is known of each round of the library's fit."""

    def __init__(self, algorithm: Scaffold, test_images: Tensor, test_classes: Tensor) -> None:
        self.rows: list[dict[str, float]] = []
        self._algorithm = algorithm
        self._test = (test_images, test_classes)

    @torch.no_grad()
    def on_round_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The round is done: the module holds the server's model."""
        net = Flat(pl_module)
        server = self._algorithm.control_variate
        corrections = [server - self._algorithm.client_control_variate(client) for client in range(CLIENTS)]
        row = {
            "test_acc": round(net.accuracy(*self._test), 4),
            "norm_of_model": significant(float(net.weights.norm())),
            "norm_of_c": significant(float(server.norm())),
            "largest_correction": significant(max(float(correction.norm()) for correction in corrections)),
        }
        self.rows.append(row)
        print(row, flush=True)


def library(options: argparse.Namespace, seed: int) -> list[dict[str, float]]:
    """Return what is known of each round of the library's fit."""
    _, classes, test_images, test_classes = options.samples
    kind = FashionMNISTDataModule if options.data == "Fashion" else MNISTDataModule
    data = kind(
        data_dir=options.folder,
        partitioner=ExplicitPartitioner([part.tolist() for part in partition(options, classes.numpy(), seed)]),
        split=SampleSplit(val=0.0, test="official"),
        batch_size=BATCH,
        standardize="global" if options.data == "MNIST, standardized" else None,
    )
    algorithm = Scaffold(
        clients_per_round=1.0,
        local_epochs=EPOCHS,
        momentum=MOMENTUM,
        weighting="samples",
        executor="sequential",
        seed=seed,
    )
    watch = Watch(algorithm, test_images, test_classes)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=options.rounds,
        callbacks=[algorithm, watch],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(network(seed), datamodule=data)
    return watch.rows


def add(rows: list[dict[str, object]], keys: list[str], path: Path) -> None:
    """Add rows to a file, or replace them."""
    known = [pd.read_csv(path)] if path.exists() else []
    together = pd.concat([*known, pd.DataFrame(rows)]).drop_duplicates(keys, keep="last").sort_values(keys)
    together.to_csv(path, index=False, lineterminator="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["flower"], choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--partition", choices=PARTITIONS, default="flower")
    parser.add_argument(
        "--partition-seed", type=int, default=42, help="seed of another group's partition; -1: that of the fit"
    )
    parser.add_argument("--steps", choices=["torch", "c++"], default="torch", help="what takes the loops' steps")
    parser.add_argument("--order", choices=["loop", "here"], default="loop", help="who draws the order of samples")
    parser.add_argument("--data", choices=["Fashion", "MNIST", "MNIST, standardized"], default="Fashion")
    parser.add_argument("--classes", type=int, default=2, help="classes of a client; not for fedbench")
    parser.add_argument("--most", type=int, default=0, help="most samples of a client; 0: all that it has")
    parser.add_argument("--missing", type=int, default=0, help="clients that fail in the first round; for flower")
    parser.add_argument("--found", type=int, default=0, help="rounds of an earlier run in the same folder; for flower")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=0.0, help="longest gradient of the loss; 0: any")
    parser.add_argument("--folder", default="data", help="folder that has the data sets")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--clients", type=Path)
    options = parser.parse_args()
    kind = FashionMNIST if options.data == "Fashion" else MNIST
    training = kind(options.folder, train=True)
    test = kind(options.folder, train=False)
    options.samples = (
        pixels(training, options.data),
        training.targets,
        pixels(test, options.data),
        test.targets,
    )
    for seed in options.seeds:
        for method in options.methods:
            fit = {
                "data": options.data,
                "classes": 0 if options.partition == "fedbench" else options.classes,
                "partition": options.partition,
                "partition_seed": partition_seed(options, seed),
                "method": method,
                "steps": options.steps,
                "order": options.order,
                "most": options.most,
                "missing": options.missing,
                "found": options.found,
                "lr": options.lr,
                "clip": options.clip,
                "seed": seed,
            }
            begin = time.process_time()
            rounds = (
                ((row, []) for row in library(options, seed)) if method == "library" else loop(options, method, seed)
            )
            for index, (row, clients) in enumerate(rounds):
                print(f"{fit}, round {index + 1}: {row}, {time.process_time() - begin:.0f} s", flush=True)
                if options.output:
                    add([{**fit, "round": index + 1, **row}], [*FIT, "round"], options.output)
                if options.clients and clients:
                    of_clients = [{**fit, "round": index + 1, **client} for client in clients]
                    add(of_clients, [*FIT, "round", "client"], options.clients)


if __name__ == "__main__":
    main()
