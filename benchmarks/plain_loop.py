"""A federated round in plain PyTorch: what the benchmarks compare with. It imports neither Lightning nor the library.

    python benchmarks/plain_loop.py W1 plain wall

trains one round for each line of the standard input, which names the clients (drawn ones if it is empty), and prints
its seconds: of the ``plain`` loop or of ``bare`` batched products, by the ``wall``'s clock or the ``processor``'s.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from federations import WORKLOADS, ByHand, Clients, make_clients, make_network
from products import BareProducts
from torch import Tensor, nn
from torch.nn import functional as F

#: The processor's counts what the calling thread took, whatever else runs on the machine.
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.thread_time}


class PlainLoop(ByHand):
    """A federated round by hand: FedAvg, or FedDyn's clients with their states (without the server's correction)."""

    def _prepare(self, name: str) -> None:
        self.network = make_network(name).to(self.device)
        self.server = self._read()
        self.duals: dict[int, Tensor] | None = {} if name == "W6" else None

    def _read(self) -> Tensor:
        with torch.no_grad():
            return nn.utils.parameters_to_vector(self.network.parameters())

    def _write(self, vector: Tensor) -> None:
        with torch.no_grad():
            for parameter, part in zip(self.network.parameters(), self._split(vector), strict=True):
                parameter.copy_(part)

    def _split(self, vector: Tensor) -> list[Tensor]:
        """Return the parts of a vector in the shapes of the parameters."""
        parameters = list(self.network.parameters())
        parts = vector.split([parameter.numel() for parameter in parameters])
        return [part.view_as(parameter) for parameter, part in zip(parameters, parts, strict=True)]

    def round(self, drawn: Sequence[int] = ()) -> float:
        """Train a round of some clients, or of drawn ones, and return its seconds."""
        begun = self._clock()
        if not drawn:
            drawn = self.draw()
        total = torch.zeros_like(self.server)
        for client in drawn:
            total += self._train(client)
        self.server = total / len(drawn)
        return self._clock() - begun

    def _train(self, client: int) -> Tensor:
        x, y = self.clients[client]
        self._write(self.server)
        make_optimizer = getattr(torch.optim, self.work.optimizer)
        optimizer = make_optimizer(self.network.parameters(), lr=self.work.lr)
        # FedDyn's term in the gradient is alpha (dual + w - start).
        constants: list[Tensor] = []
        if self.duals is not None:
            dual = self.duals.get(client, torch.zeros_like(self.server))
            constants = self._split(dual - self.server)
        for _ in range(self.work.epochs):
            order = torch.randperm(len(x), generator=self.generator).to(self.device)
            for index in order.split(self.work.batch_size):
                loss = F.cross_entropy(self.network(x[index]), y[index])
                optimizer.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for parameter, constant in zip(self.network.parameters(), constants, strict=False):
                        assert parameter.grad is not None
                        parameter.grad += 0.01 * (constant + parameter)
                optimizer.step()
        trained = self._read()
        if self.duals is not None:
            self.duals[client] = dual + trained - self.server
        return trained

    def accuracy(self) -> float:
        """Return the server model's accuracy on the first clients' samples."""
        self._write(self.server)
        return accuracy(self.network, self.clients)


def accuracy(network: nn.Module, clients: Clients) -> float:
    """Return a network's accuracy on the first clients' samples, on which every row is measured."""
    hits = 0
    samples = 0
    with torch.no_grad():
        for x, y in clients[:10]:
            hits += int((network(x).argmax(1) == y).sum())
            samples += len(y)
    return hits / samples


def make_loop(name: str, kind: str, clock: Callable[[], float]) -> ByHand:
    """Return a workload's plain loop, or its bare products, in this process."""
    loop = BareProducts if kind == "bare" else PlainLoop
    return loop(name, make_clients(WORKLOADS[name]), clock)


class LoopProcess:
    """Rounds in another process, which trains one when it is told to.

    Args:
        command: Starts the process. It reads the clients of each round from a line, and answers with its seconds.
        environment: Its environment; ``None`` for this process's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self, drawn: Sequence[int] = ()) -> float:
        """Train a round of some clients there, or of drawn ones, and return its seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(*drawn, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def start_loop(name: str, kind: str = "plain", clock: str = "wall") -> LoopProcess:
    """Return a :class:`PlainLoop` in another process.

    Args:
        name: The workload.
        kind: ``"plain"``, or ``"bare"`` for :class:`BareProducts`.
        clock: One of :data:`CLOCKS`.
    """
    return LoopProcess([sys.executable, __file__, name, kind, clock])


if __name__ == "__main__":
    loop = make_loop(name=sys.argv[1], kind=sys.argv[2], clock=CLOCKS[sys.argv[3]])
    for line in sys.stdin:
        clients = [int(client) for client in line.split()]
        print(loop.round(clients), flush=True)
