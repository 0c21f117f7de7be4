"""What one client leaves for another: in a stack all clients start before the first of them ends."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from fl_lightning import Federated, TensorDataModule
from fl_lightning.parts import Correction, Exchange, LocalObjective, Schedule

SIZES = (5, 9, 12, 7, 4, 8, 16, 11, 6, 10, 13, 3)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.losses = MeanMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.losses.update(loss)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def clients() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 6, generator=generator, dtype=torch.float64), torch.randint(0, 3, (n,), generator=generator))
        for n in SIZES
    ]


def fit(
    executor: str,
    parts: dict[str, Any],
    callbacks: list[Any],
    module: L.LightningModule | None = None,
    data: TensorDataModule | None = None,
) -> tuple[Tensor, str | None]:
    """Return the weights after four rounds of all clients, and why ``"vectorized"`` has not stacked them."""
    module = module or Net()
    algorithm = Federated(1.0, executor=executor, seed=1, **parts)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, algorithm],
    )
    trainer.fit(module, datamodule=data or TensorDataModule(clients(), batch_size=4))
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    loop: Any = trainer.fit_loop
    return weights, loop.executor.cause if executor == "vectorized" else None


class Chain(Schedule):
    """Cyclic training: a client starts where the one before has ended."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def start(self, slot: int, server: Any) -> Tensor:
        return self.results[-1].vector if self.results else server.model

    def receive(self, result: Any, server: Any) -> None:
        self.results.append(result)

    def publish(self, server: Any, failed: Any) -> Tensor:
        results, self.results = self.results, []
        server.take(results[-1])
        server.move()
        return server.model

    def on_round_abort(self) -> None:
        self.results = []


class PassesOn(Exchange):
    """A client receives what the one before has sent."""

    def __init__(self) -> None:
        self.last: Tensor | None = None

    def on_round_start(self, round_index: int) -> None:
        self.last = None

    def download(self, task: Any, model: Tensor) -> Tensor:
        return model if self.last is None else self.last

    def upload(self, result: Any) -> Any:
        self.last = result.vector.clone()
        return result


class Grows(LocalObjective):
    """The pull grows with the clients that have ended."""

    def on_round_start(self, round_index: int) -> None:
        self.ended = 0

    def correction(self, client: Any) -> Correction:
        return Correction(pull=0.1 * self.ended)

    def on_client_end(self, result: Any) -> None:
        self.ended += 1


class Received(Exchange):
    """Half of the way back to the model that the client has received, as the last ``download`` left it."""

    def download(self, task: Any, model: Tensor) -> Tensor:
        self.received = model * (1 + 0.01 * task.client)
        return self.received

    def upload(self, result: Any) -> Any:
        return result.with_delta((result.vector - self.received) / 2)


class Norms(Exchange):
    """Shrinks a model by the norms that other clients have sent before."""

    def __init__(self) -> None:
        self.norms: dict[int, float] = {}

    def download(self, task: Any, model: Tensor) -> Tensor:
        return model / (1 + 0.01 * sum(self.norms.values()))

    def upload(self, result: Any) -> Any:
        self.norms[result.task.client] = float(result.delta.norm())
        return result


class Rates(L.Callback):
    """Sets a client's learning rate."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        trainer.optimizers[0].param_groups[0]["lr"] = self.rate(trainer, pl_module, client)

    def rate(self, trainer: Any, pl_module: Any, client: Any) -> float:
        raise NotImplementedError


class ByStep(Rates):
    def rate(self, trainer: Any, pl_module: Any, client: Any) -> float:
        return 0.1 / (1 + 0.01 * trainer.global_step)


class ByLoss(Rates):
    def rate(self, trainer: Any, pl_module: Any, client: Any) -> float:
        return 0.05 * float(trainer.callback_metrics.get("train_loss", 1.0))


class ByMetric(Rates):
    def rate(self, trainer: Any, pl_module: Any, client: Any) -> float:
        return 0.1 / (1 + float(pl_module.losses.mean_value))


class Notes(L.Callback):
    last = 0.1

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.last = 0.02 + 0.1 * float(result.delta.norm())


class ByNotes(Rates):
    def rate(self, trainer: Any, pl_module: Any, client: Any) -> float:
        return float(trainer.callbacks[0].last)


def by_closure() -> Rates:
    last = {"rate": 0.1}

    class ByClosure(Rates):
        def rate(self, trainer: Any, pl_module: Any, client: Any) -> float:
            return last["rate"]

        def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
            last["rate"] = 0.02 + 0.1 * float(result.delta.norm())

    return ByClosure()


class MeanHead(L.Callback):
    """A client starts from the mean of the heads of the clients before."""

    def __init__(self) -> None:
        self.heads: dict[int, Tensor] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if self.heads:
            with torch.no_grad():
                pl_module.layers[2].bias.copy_(torch.stack([self.heads[other] for other in self.heads]).mean(0))

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.heads[result.task.client] = pl_module.layers[2].bias.detach().clone()


HANDED_ON: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], list[Any]], str]] = {
    "a schedule's results": (lambda: {"schedule": Chain()}, list, "`Chain.results` when a client ends"),
    "what is sent": (lambda: {"exchange": PassesOn()}, list, "`PassesOn.last` when a client ends"),
    "a count of ends": (lambda: {"objective": Grows()}, list, "`Grows.ended` when a client ends"),
    "what is received": (lambda: {"exchange": Received()}, list, "`Received.received` when a client starts"),
    "others' entries": (lambda: {"exchange": Norms()}, list, r"`Norms.norms\[\d+\]` when a client ends"),
    "the step": (dict, lambda: [ByStep()], "reads `global_step`"),
    "a logged value": (dict, lambda: [ByLoss()], "reads `callback_metrics`"),
    "a metric object": (dict, lambda: [ByMetric()], "reads `losses`"),
    "another callback": (dict, lambda: [Notes(), ByNotes()], "`on_client_end` changes `Notes.last`"),
    "a closure": (dict, lambda: [by_closure()], "`on_client_end` changes `ByClosure.last.rate`"),
    "others' heads": (dict, lambda: [MeanHead()], r"`on_client_end` changes `MeanHead.heads\[\d+\]`"),
}


@pytest.mark.auto_decides
@pytest.mark.parametrize("name", HANDED_ON)
def test_clients_that_hand_something_on_train_one_after_the_other(name: str) -> None:
    parts, callbacks, cause = HANDED_ON[name]
    alone, _ = fit("sequential", parts(), callbacks())
    for executor in ("vectorized", "auto"):
        weights, why = fit(executor, parts(), callbacks())
        assert torch.equal(weights, alone), executor
        if executor == "vectorized":
            assert why is not None
            assert re.search(cause, why)


class Heads(L.Callback):
    """A client goes on from its own head."""

    def __init__(self) -> None:
        self.heads: dict[int, Tensor] = {}
        self.rounds: dict[int, int] = defaultdict(int)

    def on_client_start(self, trainer: Any, pl_module: Any, client: int) -> None:
        number = client.task.client  # type: ignore[attr-defined]
        with torch.no_grad():
            if number in self.heads:
                pl_module.layers[2].bias.copy_(self.heads[number])
            pl_module.layers[2].bias.add_(0.01 * self.rounds[number])

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.heads[result.task.client] = pl_module.layers[2].bias.detach().clone()
        self.rounds[result.task.client] += 1


class OfRound(Exchange):
    """What is the same for all clients of a round is made once, when the first of them starts."""

    def __init__(self) -> None:
        self.round, self.factor = -1, 1.0
        self.own: dict[int, Tensor] = {}

    def download(self, task: Any, model: Tensor) -> Tensor:
        if task.round != self.round:
            self.round, self.factor = task.round, 1 / (1 + task.round)
        self.own[task.client] = model * (1 + 0.01 * task.client)
        return self.own[task.client]

    def upload(self, result: Any) -> Any:
        return result.with_delta((result.vector - self.own[result.task.client]) * self.factor)


class ByHead(Exchange):
    """Scales updates by a number of the module that the client has trained."""

    def __init__(self, module: list[Any]) -> None:
        self.module = module

    def upload(self, result: Any) -> Any:
        return result.with_delta(result.delta * float(self.module[0].layers[2].bias.detach().abs().mean()))


class Shows(L.Callback):
    """Gives an exchange the module."""

    def __init__(self, held: list[Any]) -> None:
        self.held = held

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.held[:] = [pl_module]


def with_module() -> tuple[dict[str, Any], list[Any]]:
    held: list[Any] = []
    return {"exchange": ByHead(held)}, [Shows(held)]


@pytest.mark.parametrize(
    "given",
    [lambda: ({}, [Heads()]), lambda: ({"exchange": OfRound()}, []), with_module],
    ids=["heads", "round", "module"],
)
def test_what_is_a_client_s_own_is_stacked(given: Callable[[], tuple[dict[str, Any], list[Any]]]) -> None:
    alone, _ = fit("sequential", *given())
    weights, why = fit("vectorized", *given())
    assert why is None
    assert torch.allclose(weights, alone, rtol=1e-9, atol=1e-12)


class Later(PassesOn):
    """Begins to hand something on in the third round."""

    def upload(self, result: Any) -> Any:
        return super().upload(result) if result.task.round >= 2 else result


def test_parts_that_begin_later_to_hand_something_on_raise_an_error() -> None:
    message = (
        "a part of the algorithm changes `Later.last` when a client ends, which it may read when the next one starts"
    )
    with pytest.raises(RuntimeError, match=message):
        fit("vectorized", {"exchange": Later()}, [])


class OwnBias(L.Callback):
    """From the second round on, a client goes on from its own bias."""

    def __init__(self) -> None:
        self.own: dict[int, Tensor] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if client.task.client in self.own:
            with torch.no_grad():
                pl_module.layers[2].bias.copy_(self.own[client.task.client])

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.own[result.task.client] = pl_module.layers[2].bias.detach().clone()


class PullByLoss(LocalObjective):
    """The pull is the client's loss, before it trains."""

    def correction(self, client: Any) -> Correction:
        return Correction(pull=client.loss())


def test_an_objective_sees_the_weights_that_a_hook_begins_to_set_in_a_later_round() -> None:
    alone, _ = fit("sequential", {"objective": PullByLoss()}, [OwnBias()])
    weights, _ = fit("vectorized", {"objective": PullByLoss()}, [OwnBias()])
    assert torch.allclose(weights, alone, rtol=1e-9, atol=1e-12)


class OwnEpochs(L.Callback):
    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        trainer.callbacks[-1].local_epochs = 2


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_how_long_clients_train_cannot_be_set_for_one_of_them(executor: str) -> None:
    with pytest.raises(RuntimeError, match="`local_epochs` cannot be set to 2 while clients train"):
        fit(executor, {}, [OwnEpochs()])


def noisy(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


class Dropping(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = nn.Sequential(nn.Tanh(), nn.Dropout(0.3))


def test_augmentation_and_dropout_draw_in_a_stack_what_they_draw_alone() -> None:
    def data() -> TensorDataModule:
        return TensorDataModule(clients(), batch_size=4, train_transform=noisy)

    alone, _ = fit("sequential", {}, [], Dropping(), data())
    weights, why = fit("vectorized", {}, [], Dropping(), data())
    assert why is None
    assert torch.allclose(weights, alone, rtol=1e-9, atol=1e-12)


class Attention(Net):
    """Its keys' bias has no gradient: what softmax gets is shifted by it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.attention = nn.Linear(2, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(8, 3))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        embedded = self.embedding(batch[0].view(-1, 3, 2))
        attended, _ = self.attention(embedded, embedded, embedded, need_weights=False)
        return F.cross_entropy(self.layers((embedded + attended).mean(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def test_the_cause_tells_of_values_without_a_gradient() -> None:
    data = TensorDataModule([(x.float(), y) for x, y in clients()], batch_size=4)
    _, why = fit("vectorized", {}, [], Attention(), data)
    assert why is not None
    assert why.startswith("a gradient of 'attention.in_proj_bias' is zero but for rounding")


class ReturnsResult(LocalObjective):
    def on_client_end(self, result: Any) -> Any:
        return result.with_delta(result.delta / 2)


def test_an_objective_that_returns_a_result_is_told_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"`ReturnsResult.on_client_end` returned ClientResult.* Write an `Exchange`"):
        fit("sequential", {"objective": ReturnsResult()}, [])
