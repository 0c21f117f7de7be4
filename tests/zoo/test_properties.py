"""Any composition of layers, optimizer, schedule, clipping, accumulation, sizes, algorithm: stacks change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers.toys import quiet_trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

from fl_lightning import FedAdam, FedAvg, FedBuff, FedDyn, FedProx, RADFed, Scaffold, TensorDataModule
from fl_lightning.parts import Clip, Participation, PersonalParameters
from zoo.entry import CLASSES, FEATURES, tensors
from zoo.modules.base import Classifier
from zoo.outcome import CallRecorder, Outcome, compare, outcome

WIDTH = 4
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "bilinear": lambda: Squared(),
    "batch norm": lambda: BatchNormOfTwo(),
    "dropout": lambda: nn.Dropout(0.3),
}
IMAGE_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
    "depthwise": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "pool": lambda: nn.MaxPool2d(3, stride=1, padding=1),
    "batch norm": lambda: nn.BatchNorm2d(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "instance norm": lambda: nn.InstanceNorm2d(WIDTH, affine=True),
    "dropout": lambda: nn.Dropout2d(0.3),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, eps=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, eps=1e-2),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: optimizer,
    "by epoch": lambda optimizer: ([optimizer], [lr_scheduler.ExponentialLR(optimizer, 0.5)]),
    "by step": lambda optimizer: (
        [optimizer],
        [{"scheduler": lr_scheduler.LambdaLR(optimizer, lambda step: (1 + step) ** -0.5), "interval": "step"}],
    ),
}
CLIPPING: dict[str, dict[str, Any]] = {
    "none": {},
    "norm": {"gradient_clip_val": 0.2},
    "value": {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
}
ALGORITHMS: dict[str, Callable[..., Any]] = {
    "FedAvg": lambda **k: FedAvg(1.0, **k),
    "FedAvg, half": lambda **k: FedAvg(0.5, partial="stale", **k),
    "FedAvg, local buffers": lambda **k: FedAvg(1.0, buffers="local", **k),
    "FedAvg, drop-out": lambda **k: FedAvg(1.0, participation=Participation(available=0.9, dropout=0.3), **k),
    "FedAvg, stragglers": lambda **k: FedAvg(1.0, participation=Participation(stragglers=0.5), **more_work(k)),
    "FedAvg, personal and clipped": lambda **k: FedAvg(1.0, exchange=[PersonalParameters("layers.0"), Clip(0.1)], **k),
    "FedProx": lambda **k: FedProx(0.5, 1.0, **k),
    "FedDyn": lambda **k: FedDyn(0.1, 0.7, **k),
    "Scaffold": lambda **k: Scaffold(0.7, **k),
    "FedAdam": lambda **k: FedAdam(clients_per_round=1.0, tau=0.1, **k),
    "RADFed": lambda **k: RADFed(2, 0.7, **k),
    "FedBuff": lambda **k: FedBuff(2, **k),
}


def more_work(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with two epochs or steps at least, of which stragglers do a part."""
    return {key: max(value, 2) if key.startswith("local") else value for key, value in options.items()}


class Squared(nn.Module):
    """A parameter that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(0.1 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ self.matrix) @ self.matrix


class BatchNormOfTwo(nn.Module):
    """BatchNorm of a batch beside its negative, so that a batch may have one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([x, 1 - x * x]))[: x.shape[0]]


@dataclass(frozen=True)
class Composition:
    """A fit that is put together at random."""

    images: bool
    layers: tuple[str, ...]
    optimizer: str
    schedule: str
    clipping: str
    accumulate: int
    sizes: tuple[int, ...]
    batch_size: int | None
    work: tuple[str, int]
    algorithm: str
    clients_at_once: int | None
    limit: float

    def network(self) -> nn.Module:
        kinds = IMAGE_LAYERS if self.images else LAYERS
        between = [kinds[name]() for name in self.layers]
        if not self.images:
            return nn.Sequential(nn.Linear(FEATURES, WIDTH), *between, nn.Linear(WIDTH, CLASSES))
        head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * WIDTH, CLASSES)]
        return nn.Sequential(nn.Conv2d(2, WIDTH, 3, padding=1), *between, *head)

    def run(self, executor: str) -> Outcome:
        """Return what three rounds leave behind."""
        module = _Composed(self)
        clients = tensors((2, 4, 4) if self.images else (FEATURES,), self.sizes, torch.float64).clients
        data = TensorDataModule(clients, batch_size=self.batch_size)
        options = dict([self.work]) | ({} if executor == "sequential" else {"clients_at_once": self.clients_at_once})
        callback = ALGORITHMS[self.algorithm](executor=executor, seed=3, **options)
        accumulated = {"accumulate_grad_batches": self.accumulate, "limit_train_batches": self.limit}
        settings = {**accumulated, **CLIPPING[self.clipping]}
        trainer = quiet_trainer(
            max_epochs=3, callbacks=[callback], logger=CallRecorder(), log_every_n_steps=1, **settings
        )
        trainer.fit(module, datamodule=data)
        values = {**trainer.callback_metrics, "global_step": trainer.global_step}
        return outcome(module, None, trainer.logger.calls, values, [])


class _Composed(Classifier):
    def __init__(self, composition: Composition) -> None:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            super().__init__(composition.network())
        self.composition = composition
        self.double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        made = OPTIMIZERS[self.composition.optimizer](self.parameters())
        return SCHEDULES[self.composition.schedule](made)


def compositions(images: bool, *layers: str) -> st.SearchStrategy[Composition]:
    """Return a strategy for compositions of some kinds of layers, for images or vectors."""
    return st.builds(
        Composition,
        images=st.just(images),
        layers=st.lists(st.sampled_from(layers), min_size=1, max_size=4).map(tuple),
        optimizer=st.sampled_from(list(OPTIMIZERS)),
        schedule=st.sampled_from(list(SCHEDULES)),
        clipping=st.sampled_from(list(CLIPPING)),
        accumulate=st.integers(1, 3),
        sizes=st.lists(st.integers(1, 20), min_size=3, max_size=7).map(tuple),
        batch_size=st.sampled_from([2, 3, 5, 8, None]),
        work=st.one_of(
            st.tuples(st.just("local_epochs"), st.integers(1, 2)), st.tuples(st.just("local_steps"), st.integers(1, 4))
        ),
        algorithm=st.sampled_from(list(ALGORITHMS)),
        clients_at_once=st.sampled_from([None, 2, 3]),
        limit=st.sampled_from([1.0, 0.5]),
    )


@pytest.mark.long
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.one_of(compositions(False, *LAYERS), compositions(True, *IMAGE_LAYERS)))
def test_compositions(composition: Composition) -> None:
    assert not compare(composition.run("sequential"), composition.run("vectorized"), 1e-6)
