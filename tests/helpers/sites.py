"""Sites of real clients in this process: Flower's own messages, serialised there and back, without a SuperLink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fl_lightning import AggregationCallback, TensorDataModule
from fl_lightning.flower import FlowerClients, query_client, train_client
from fl_lightning.parts.part import walk

SIZES = (9, 17, 12)
#: Number of Flower's error.
PROGRAM_FAILED = 2

Make = Callable[..., AggregationCallback]


class Net(L.LightningModule):
    """Two layers, dropout, momentum, and learning rates of their own, which fall from round to round."""

    def __init__(self, norm: bool = False, momentum: float = 0.0) -> None:
        super().__init__()
        self.momentum = momentum
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(5, 3)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.head(self.body(x)), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.log("first_label", float(y[0]), on_step=False, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.head(self.body(x)), y))

    def configure_optimizers(self) -> tuple[list[Any], list[Any]]:
        groups = [{"params": self.body.parameters()}, {"params": self.head.parameters(), "lr": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=0.2, momentum=self.momentum)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]


def net(kind: type[Net] = Net, **options: Any) -> Net:
    """Return the module, or one of another kind, with the same weights each time."""
    torch.manual_seed(3)
    return kind(**options)


def _samples(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size, 4, generator=generator)
    return x, torch.randint(0, 3, (size,), generator=generator)


_generator = torch.Generator().manual_seed(5)
CLIENTS = [_samples(size, _generator) for size in SIZES]
VALIDATION = _samples(6, _generator)


def trainer(algorithm: AggregationCallback, rounds: int = 2, **options: Any) -> L.Trainer:
    """Return a trainer that prints and writes nothing."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    given = {**quiet, "enable_model_summary": False, "accelerator": "cpu", **options}
    return L.Trainer(max_epochs=rounds, callbacks=[algorithm, *given.pop("callbacks", [])], **given)


def simulate(make: Make, rounds: int = 2, module: Net | None = None) -> AggregationCallback:
    """Fit in simulation, one client after the other, and return the callback."""
    algorithm = make(executor="sequential", seed=11)
    data = TensorDataModule(CLIENTS, val=VALIDATION, batch_size=5)
    trainer(algorithm, rounds).fit(module or net(), datamodule=data)
    return algorithm


@dataclass
class Sites:
    """Sites in this process, and the grid that reaches them.

    Attributes:
        make: Makes the algorithm, on both sides.
        module: Makes the module, on both sides.
        silent: Says whether a client's answer of a round is lost, by client and round.
        state_dir: The sites' folder for what they keep.
        names: What the clients call themselves.
        options: Further arguments of ``train_client``.
        questions: All messages from the server.
        replies: All messages from the clients.
        contexts: Flower's context of each node.
    """

    make: Make
    module: Callable[[], Net] = net
    silent: Callable[[int, int], bool] = lambda client, number: False
    state_dir: Path | None = None
    names: tuple[Any, ...] = (0, 1, 2)
    options: dict[str, Any] = field(default_factory=lambda: {"secret_noise": False})
    clients: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=lambda: list(CLIENTS))
    questions: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)
    contexts: dict[int, Context] = field(default_factory=dict)
    change: Callable[[dict[str, Any], dict[str, np.ndarray]], None] | None = None

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        for client, name in enumerate(self.names):
            self.connect(client, 100 + client, name)

    def connect(self, client: int, node: int, name: Any) -> None:
        """Start a SuperNode, which has no state yet."""
        self.contexts[node] = Context(1, node, {"client": name, "place": client}, RecordDict(), {})

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        # Without it Flower would wait for ever.
        assert timeout is not None
        arrived = []
        for message in messages:
            question = message_from_proto(message_to_proto(message))
            self.questions.append(question)
            context = self.contexts[question.metadata.dst_node_id]
            try:
                reply = self.answer(question, context)
            except Exception as error:
                reply = Message(Error(PROGRAM_FAILED, f"{type(error)}:<'{error}'>"), reply_to=question)
            reply = message_from_proto(message_to_proto(reply))
            is_training = question.metadata.message_type == "train"
            if is_training and self.silent(context.node_config["place"], values_of(question)["round"]):
                continue
            self.replies.append(reply)
            arrived.append(reply)
        return arrived

    def answer(self, question: Message, context: Context) -> Message:
        """Do what a site's ClientApp does."""
        data = TensorDataModule([self.clients[context.node_config["place"]]], batch_size=5)
        if question.metadata.message_type == "query":
            return query_client(question, context, data)
        if self.change is not None:
            self.change(question.content["fl-lightning.values"], question.content["fl-lightning.arrays"])
        algorithm = self.make(seed=11)
        options = {"state_dir": self.state_dir, "accelerator": "cpu", **self.options}
        return train_client(question, context, self.module(), data, algorithm, **options)

    def fit(self, rounds: int = 2, ckpt_path: str | None = None, **options: Any) -> AggregationCallback:
        """Fit with the sites, and return the callback."""
        clients = FlowerClients(self, num_clients=len(self.names), timeout=2.0)  # type: ignore[arg-type]
        algorithm = self.make(executor=clients, seed=11)
        data = clients.data_module(TensorDataset(*VALIDATION), TensorDataset(*CLIENTS[0]), batch_size=5)
        self.trainer = trainer(algorithm, rounds, **options)
        self.trainer.fit(self.module(), datamodule=data, ckpt_path=ckpt_path)
        return algorithm

    def kept(self, node: int) -> dict[str, np.ndarray]:
        """Return what a site keeps, by the part's class and the name of the vector."""
        state = self.contexts[node].state
        if "fl-lightning.values" not in state:
            return {}
        start = state["fl-lightning.values"]["turns"].split()[-1] + "/"
        arrays = {name: array.numpy() for name, array in state["fl-lightning.arrays"].items() if name.startswith(start)}
        return {name.partition("-")[2]: array for name, array in arrays.items()}


def kept_in_simulation(algorithm: AggregationCallback, client: int) -> dict[str, np.ndarray]:
    """Return the vectors that a client's parts keep in a simulation, as :meth:`Sites.kept` does."""
    plan = algorithm.algorithm
    kept = {}
    for part in walk(plan.chain, plan.schedule, plan.objective, plan.optimizers):
        for name, vectors in part.client_vectors.items():
            if part.runs_where != "server" and (vector := vectors.get(client)) is not None:
                kept[f"{type(part).__name__}.{name}"] = vector.numpy()
    return kept


def assert_kept(sites: Sites, simulated: AggregationCallback) -> None:
    """Compare what the sites keep with what clients keep in a simulation."""
    for client in range(len(sites.names)):
        kept = sites.kept(100 + client)
        expected = kept_in_simulation(simulated, client)
        assert kept.keys() == expected.keys()
        assert all(np.array_equal(kept[key], expected[key]) for key in expected)


def values_of(message: Message) -> dict[str, Any]:
    """Return the plain values in a message."""
    return dict(message.content["fl-lightning.values"])


def arrays_of(message: Message) -> dict[str, np.ndarray]:
    """Return the arrays in a message."""
    return {name: array.numpy() for name, array in message.content["fl-lightning.arrays"].items()}


def bytes_of(messages: Iterable[Message]) -> int:
    """Return how many bytes the numbers of all arrays have."""
    total = 0
    for message in messages:
        total += sum(array.nbytes for array in arrays_of(message).values())
    return total
