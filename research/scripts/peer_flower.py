"""FedAvg of a workload with Flower's simulation: Ray actors of one CPU each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from typing import Any

# before Flower and Ray are imported: neither shall send anything
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
from federations import WORKLOADS, Clients, make_clients, make_network
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_rounds import Rounds
from plain_loop import accuracy
from torch import nn
from torch.nn import functional as F

client_app = ClientApp()


@cache
def actor_state(name: str, path: str) -> tuple[nn.Module, Clients]:
    """Return what an actor makes once: the network, and the clients from a file whose memory the actors share."""
    return make_network(name), torch.load(path, mmap=True)


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train a client for an epoch."""
    config: Any = message.content.config_records["config"]
    name = config["workload"]
    partition = int(context.node_config["partition-id"])
    network, clients = actor_state(name, config["path"])
    work = WORKLOADS[name]
    x, y = clients[partition]
    generator = torch.Generator().manual_seed(config["server-round"] * work.clients + partition)
    network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=work.lr)
    for index in torch.randperm(len(x), generator=generator).split(work.batch_size):
        optimizer.zero_grad()
        F.cross_entropy(network(x[index]), y[index]).backward()
        optimizer.step()
    answer: dict[str, Any] = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": len(x)}),
    }
    return Message(content=RecordDict(answer), reply_to=message)


class StrictFedAvg(FedAvg):
    """FedAvg that stops at a client's error instead of going on without the client."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        found: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(server_round, replies)
        return found


def train_flower(name: str, actors: int, number: int, rounds: Rounds) -> dict[str, Any]:
    """Train for a number of rounds; return the pairs of seconds, the accuracy and the version."""
    work = WORKLOADS[name]
    network = make_network(name)
    server_app = ServerApp()
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(make_clients(work), file.name)

        def end_round(server_round: int, arrays: ArrayRecord) -> None:
            if server_round:
                rounds.end()

        @server_app.main()
        def train_server(grid: Grid, context: Context) -> None:
            strategy = StrictFedAvg(
                fraction_train=work.per_round / work.clients,
                fraction_evaluate=0.0,
                min_train_nodes=work.per_round,
                min_available_nodes=work.clients,
            )
            result = strategy.start(
                grid,
                ArrayRecord(network.state_dict()),
                num_rounds=number,
                train_config=ConfigRecord({"workload": name, "path": file.name}),
                evaluate_fn=end_round,
            )
            network.load_state_dict(result.arrays.to_torch_state_dict())

        resources: dict[str, Any] = {
            "init_args": {"num_cpus": actors},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }
        run_simulation(server_app, client_app, num_supernodes=work.clients, backend_config=resources)
        reached = accuracy(network, torch.load(file.name, mmap=True))
    used = f"Flower {version('flwr')}, Ray {version('ray')}"
    return {"pairs": rounds.pairs, "accuracy": reached, "used": used}
