"""Rounds of a workload in pfl-research; ``peers.py`` starts it in pfl's environment.

    python pfl_rounds.py FOLDER

The folder holds the workload as :mod:`peers` writes it. For each line of the standard input, which names the clients of
a round, pfl's simulated backend trains them in this process, which prints the round's seconds of processor time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from federations import make_network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

#: More than are ever asked for; the end of the standard input ends the process.
_ROUNDS = 10**6


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


class Rounds(TrainingProcessCallback):
    """Reads the clients of each round, and prints its seconds."""

    def __init__(self) -> None:
        self.begun = 0.0

    def clients(self) -> Iterator[int]:
        """Yield the clients of one round after another."""
        for line in sys.stdin:
            self.begun = time.process_time()
            yield from map(int, line.split())
        sys.exit()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        print(time.process_time() - self.begun, flush=True)
        return False, Metrics()


def main() -> None:
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    arrays = np.load(folder / "arrays.npz")
    clients = []
    for number in range(work["clients"]):
        clients.append((torch.from_numpy(arrays[f"x{number}"]), torch.from_numpy(arrays[f"y{number}"])))

    def make_dataset(client: int) -> PyTorchTensorDataset:
        x, y = clients[client]
        # pfl takes a client's batches in order, so a client that is drawn is shuffled as a whole.
        order = torch.randperm(len(y))
        return PyTorchTensorDataset((x[order], y[order]))

    rounds = Rounds()
    data = FederatedDataset(make_dataset, rounds.clients().__next__)
    learner = Learner(make_network(work["name"]))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_ROUNDS,
            # The first round evaluates whatever it is.
            evaluation_frequency=_ROUNDS,
            train_cohort_size=work["per_round"],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(learner, getattr(torch.optim, work["optimizer"]), torch.optim.SGD(learner.parameters(), lr=1.0)),
        NNTrainHyperParams(work["batch_size"], local_num_epochs=work["epochs"], local_learning_rate=work["lr"]),
        NNEvalHyperParams(None),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
