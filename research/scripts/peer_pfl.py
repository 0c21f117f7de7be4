"""FedAvg of a workload with pfl: its PyTorch model in the simulated backend, one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch
from federations import WORKLOADS, Workload, make_clients, make_network
from peer_rounds import Rounds
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from plain_loop import accuracy
from torch import Tensor, nn
from torch.nn import functional as F


class Learner(nn.Module):
    """A network with the loss and the metrics that pfl asks a module for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"accuracy": Weighted(int((self.network(x).argmax(1) == y).sum()), len(y))}


class Pairs(TrainingProcessCallback):
    """Runs a plain round after each round."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.rounds.end()
        return False, Metrics()


def draw(work: Workload, generator: torch.Generator) -> Iterator[int]:
    """Yield the clients of one round after another, each round without replacement."""
    while True:
        yield from torch.randperm(work.clients, generator=generator)[: work.per_round].tolist()


def train_pfl(name: str, number: int, rounds: Rounds) -> dict[str, Any]:
    """Train for a number of rounds; return the pairs of seconds, the accuracy and the version."""
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    work = WORKLOADS[name]
    clients = make_clients(work)
    generator = torch.Generator().manual_seed(1)

    def make_dataset(client: int) -> PyTorchTensorDataset:
        # pfl takes a client's batches in order, so a client that is drawn is shuffled as a whole
        order = torch.randperm(work.samples, generator=generator)
        return PyTorchTensorDataset(tuple(tensor[order] for tensor in clients[client]))

    data = FederatedDataset(make_dataset, draw(work, generator).__next__)
    network = make_network(name)
    learner = Learner(network)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=number,
            evaluation_frequency=number,  # the first round evaluates whatever it is; that round is left out
            train_cohort_size=work.per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0)),
        NNTrainHyperParams(work.batch_size, local_num_epochs=1, local_learning_rate=work.lr),
        NNEvalHyperParams(None),
        callbacks=[Pairs(rounds)],
        send_metrics_to_platform=False,
    )
    used = f"pfl {version('pfl')}, simulated backend"
    return {"pairs": rounds.pairs, "accuracy": accuracy(network, clients), "used": used}
