"""Every algorithm, and a network to train with it: a new one is covered by a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.models import add_lora

SPEEDS = [100, 95, 50, 25, 20, 5]
Make = Callable[..., fl.AggregationCallback]


class OwnMedian(parts.Aggregation):
    """An aggregation as a user writes it: `merge` alone."""

    def merge(self, model: Tensor, results: Sequence[parts.ClientResult]) -> Tensor:
        return torch.stack([result.parameters for result in results]).quantile(0.5, dim=0)


class Adapted(fl.FedLoRA):
    """FedLoRA with a module that has no adapters yet: all else is frozen but the BatchNorm."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        torch.manual_seed(3)
        add_lora(pl_module, rank=2)
        pl_module.layers[1].requires_grad_(True)
        super().setup(trainer, pl_module, stage)


def personal() -> list[parts.Exchange]:
    """A personal last layer, and bounded updates of the others."""
    return [parts.PersonalParameters("layers.4"), parts.Clip(0.05)]


def public() -> DataLoader[Any]:
    """Return public batches in an order that is drawn."""
    samples = torch.randn(20, 6, generator=torch.Generator().manual_seed(5)).double()
    return DataLoader(samples, batch_size=8, shuffle=True)


def compressed() -> dict[str, Any]:
    """The largest values up, eight bits down, and a median of what arrives."""
    return {"exchange": [parts.TopK(0.3), parts.QSGD(8, link="down")], "aggregation": parts.Median()}


def private() -> dict[str, Any]:
    """Clients drawn by chance, a bound that adapts, and noise."""
    privacy = parts.DifferentialPrivacy(0.5, noise_multiplier=2.0, delta=1e-3, adaptive_quantile=0.5, noise_cohort=36)
    options = {"sampler": parts.BernoulliSampler(0.6), "weighting": "uniform", "buffers": "server"}
    return {"exchange": [parts.TopK(0.5), privacy], **options}


#: Clients of these can be trained at once.
STACKED: dict[str, Make] = {
    "FedAvg": lambda **k: fl.FedAvg(4, server_lr=0.7, **k),
    "FedAvg-stale": lambda **k: fl.FedAvg(4, partial="stale", **k),
    "FedAvg-stale-mapped": lambda **k: fl.FedAvg(4, partial="stale", state_dir="states", **k),
    "FedAvg-current": lambda **k: fl.FedAvg(4, partial="current", weighting="uniform", **k),
    "FedAvg-local-buffers": lambda **k: fl.FedAvg(4, buffers="local", **k),
    "FedAvg-server-buffers": lambda **k: fl.FedAvg(4, buffers="server", **k),
    "FedAvg-failing": lambda **k: fl.FedAvg(
        sampler=parts.BernoulliSampler(0.6),
        participation=parts.Participation(available=0.9, dropout=0.3, stragglers=0.5),
        local_epochs=3,
        **k,
    ),
    "FedAvg-personal": lambda **k: fl.FedAvg(4, exchange=personal(), **k),
    "FedAvg-median": lambda **k: fl.FedAvg(4, aggregation=OwnMedian(), **k),
    "RADFed-personal-median": lambda **k: fl.RADFed(3, 4, exchange=personal(), aggregation=OwnMedian(), **k),
    "RADFed-local-buffers": lambda **k: fl.RADFed(2, 4, buffers="local", **k),
    "FedBuff-personal-median": lambda **k: fl.FedBuff(
        3, 4, exchange=personal(), aggregation=OwnMedian(), speeds=SPEEDS, buffers="local", **k
    ),
    "FedAvg-compressed-median": lambda **k: fl.FedAvg(4, **compressed(), **k),
    "FedAdam-compressed-median": lambda **k: fl.FedAdam(clients_per_round=4, **compressed(), **k),
    "RADFed-compressed-median": lambda **k: fl.RADFed(3, 4, **compressed(), **k),
    "FedBuff-compressed-median": lambda **k: fl.FedBuff(3, 4, speeds=SPEEDS, **compressed(), **k),
    "FedAvg-attacked": lambda **k: fl.FedAvg(4, exchange=parts.ALittleIsEnough([1, 3], z=1.0), **k),
    "FedBuff-attacked": lambda **k: fl.FedBuff(3, 4, speeds=SPEEDS, exchange=parts.ALittleIsEnough([1, 3], z=1.0), **k),
    "FedAvg-secure": lambda **k: fl.FedAvg(
        4, weighting="uniform", buffers="server", exchange=parts.SecureAggregation(0.1, bits=12, precision=11), **k
    ),
    "RADFed-locally-private": lambda **k: fl.RADFed(
        2, 4, exchange=parts.LocalDifferentialPrivacy(0.5, noise_multiplier=1.0, delta=1e-3), buffers="server", **k
    ),
    "FedAvg-private": lambda **k: fl.FedAvg(**private(), **k),
    "FedAdam-private": lambda **k: fl.FedAdam(**private(), **k),
    "FedProx": lambda **k: fl.FedProx(lambda t: 0.1 / (1 + t), clients_per_round=4, **k),
    "FedDyn": lambda **k: fl.FedDyn(0.1, 4, **k),
    "FedDyn-all": lambda **k: fl.FedDyn(0.1, 4, evaluate="all", penalty="weight_decay", **k),
    "FedDyn-active": lambda **k: fl.FedDyn(0.1, 4, evaluate="active", scale_alpha="none", **k),
    "Scaffold": lambda **k: fl.Scaffold(4, **k),
    "Scaffold-1": lambda **k: fl.Scaffold(4, option=1, server_lr=lambda t: 0.9**t, **k),
    "FedNova": lambda **k: fl.FedNova(4, momentum=0.9, mu=0.1, **k),
    "QFedAvg": lambda **k: fl.QFedAvg(0.5, 4, **k),
    "FedExP": lambda **k: fl.FedExP(4, epsilon=1e-6, **k),
    "MIFA": lambda **k: fl.MIFA(4, **k),
    "HeteroFL": lambda **k: fl.HeteroFL([1.0, 0.5], 4, **k),
    "HeteroFL-drawn": lambda **k: fl.HeteroFL([1.0, 0.5], 4, drawn=True, weighting="samples", **k),
    "FedDF": lambda **k: fl.FedDF(Net(), public(), 4, steps=3, lr=0.05, **k),
    "FedMD": lambda **k: fl.FedMD(Net(), public(), 4, batches=2, lr=0.05, **k),
    "FedAvgM": lambda **k: fl.FedAvgM(0.9, clients_per_round=4, **k),
    "FedAdagrad": lambda **k: fl.FedAdagrad(clients_per_round=4, **k),
    "FedAdam": lambda **k: fl.FedAdam(clients_per_round=4, bias_correction=True, **k),
    "FedYogi": lambda **k: fl.FedYogi(clients_per_round=4, **k),
    "RADFed": lambda **k: fl.RADFed(3, 4, **k),
    "RADFed-aggregate": lambda **k: fl.RADFed(3, 4, evaluate="aggregate", **k),
    "RADFed-reduce": lambda **k: fl.RADFed(3, 4, unequal="reduce", participation=parts.Participation(dropout=0.3), **k),
    "RADFed-park": lambda **k: fl.RADFed(3, 4, unequal="park", participation=parts.Participation(dropout=0.3), **k),
    "RADFed-count": lambda **k: fl.RADFed(
        2, 4, unequal="count", extend_cycle=True, participation=parts.Participation(dropout=0.3), **k
    ),
    "HierFAVG": lambda **k: fl.HierFAVG([[0, 4], [1, 2], [3, 5]], 2, 4, **k),
    "HierFAVG-drawn-by-group": lambda **k: fl.HierFAVG(
        2, 2, sampler=parts.GroupSampler(2, 2), server=parts.Momentum(0.5), exchange=personal(), **k
    ),
    "RADFedi": lambda **k: fl.RADFed(3, sampler=parts.ImportanceSampler(4), **k),
    "RADFedp": lambda **k: fl.RADFed(3, 4, local=parts.Proximal(0.1), **k),
    "RADFedm": lambda **k: fl.RADFed(3, 4, server=parts.Mixing(0.6), **k),
    "FedAsync": lambda **k: fl.FedAsync(4, mixing=lambda t: 0.8 / (1 + t), rho=0.1, speeds=SPEEDS, **k),
    "FedAsync-one-by-one": lambda **k: fl.FedAsync(4, max_staleness=3, speeds=SPEEDS, lookahead=1, **k),
    "FedAsync-history": lambda **k: fl.FedAsync(4, staleness="hinge", history=5, **k),
    "FedBuff": lambda **k: fl.FedBuff(
        3,
        4,
        clock=parts.VirtualClock(SPEEDS, work="steps", jitter=0.1, dropout=0.2),
        concurrency=4,
        server=parts.Momentum(0.9),
        **k,
    ),
    "FedBuff-waiting": lambda **k: fl.FedBuff(3, 4, wait_for_flush=True, weighting="samples", speeds=SPEEDS, **k),
    "FedBuff-coming-and-going": lambda **k: fl.FedBuff(
        5, 4, clock=parts.VirtualClock(SPEEDS, online={0: [(1, 3), (9, 30)], 4: [(0, 2)]}), buffers="server", **k
    ),
    "DynamicWeightFedBuff": lambda **k: fl.DynamicWeightFedBuff(3, 4, speeds=SPEEDS, **k),
    "Local-fresh": lambda **k: fl.Local(4, optimizer_state="fresh", **k),
    "FedAvgFineTuned": lambda **k: fl.FedAvgFineTuned(4, every=2, **k),
    "FedPer": lambda **k: fl.FedPer("layers.4", 4, **k),
    "LGFedAvg": lambda **k: fl.LGFedAvg("layers.0", 4, **k),
    "FedBN": lambda **k: fl.FedBN("layers.1", 4, **k),
    "FedRep": lambda **k: fl.FedRep("layers.4", 4, head_epochs=2, **k),
    "FedBABU": lambda **k: fl.FedBABU("layers.4", 4, every=3, fine_tune_epochs=2, **k),
    "Ditto": lambda **k: fl.Ditto(0.5, 4, personal_epochs=2, **k),
    "Ditto-failing": lambda **k: fl.Ditto(
        0.5, 4, participation=parts.Participation(dropout=0.3, stragglers=0.5), local_epochs=3, **k
    ),
    "IFCA": lambda **k: fl.IFCA(2, 4, **k),
    "RADFeda": lambda **k: fl.RADFed(3, 4, server=parts.Adaptive("yogi", 0.1, 0.9, 0.99, 0.01, 0.0), **k),
    "FedLoRA-svd": lambda **k: Adapted("svd", 4, **k),
    "FedLoRA": lambda **k: Adapted("average", 4, **k),
    "FedLoRA-ranks": lambda **k: Adapted("average", 4, ranks=[2, 1], **k),
    "FedLoRA-stack": lambda **k: Adapted("stack", 4, ranks=[2, 1], **k),
    "FedLoRA-ffa": lambda **k: Adapted("ffa", 4, **k),
}
#: Clients of these take gradients at several points, change the loss, or keep what their optimizers hold.
ONE_BY_ONE: dict[str, Make] = {
    "Local": lambda **k: fl.Local(4, **k),
    "FedAvg-kept-mapped": lambda **k: fl.FedAvg(4, optimizer_state="kept", state_dir="states", **k),
    "Mime": lambda **k: fl.Mime(4, **k),
    "MimeLite": lambda **k: fl.MimeLite(4, **k),
    "DiLoCo": lambda **k: fl.DiLoCo(4, local_steps=3, **k),
    "Ditto-kept": lambda **k: fl.Ditto(0.5, 4, optimizer_state="kept", **k),
    "RADFed-kept": lambda **k: fl.RADFed(3, 4, optimizer_state="kept", **k),
    "FedBuff-kept": lambda **k: fl.FedBuff(3, 4, speeds=SPEEDS, optimizer_state="kept", **k),
    "PFedMe": lambda **k: fl.PFedMe(2.0, 4, inner_steps=2, server_lr=0.8, **k),
    "APFL": lambda **k: fl.APFL(0.4, 4, alpha_lr=0.01, **k),
    "PerFedAvg": lambda **k: fl.PerFedAvg(0.05, 4, every=2, **k),
    "PerFedAvg-second": lambda **k: fl.PerFedAvg(0.05, 4, gradient="hessian-free", every=3, **k),
    "FedALA": lambda **k: fl.FedALA("layers.4", 4, **k),
    "MOON": lambda **k: fl.MOON(1.0, 4, **k),
    "FedLC": lambda **k: fl.FedLC(0.5, 4, **k),
    "FedNTD": lambda **k: fl.FedNTD(1.0, 4, tau=2.0, **k),
    "FedDecorr": lambda **k: fl.FedDecorr(0.2, 4, **k),
    "FedSAM": lambda **k: fl.FedSAM(0.1, 4, **k),
    "FedProto": lambda **k: fl.FedProto(2.0, 4, **k),
    "FedRoD": lambda **k: fl.FedRoD("layers.4", 4, **k),
}
ALGORITHMS = {**STACKED, **ONE_BY_ONE}


def one_in(number: int, names: Iterable[str] = ALGORITHMS) -> list[Any]:
    """Return algorithms' names, all but one in so many marked as long."""
    long = pytest.mark.long
    return [pytest.param(name, marks=long) if place % number else name for place, name in enumerate(names)]


def first_of_each(number: int) -> list[Any]:
    """Return algorithms' names; of those with settings beside the plain ones, all but one in so many are long."""
    return [param if "-" in name else name for name, param in zip(ALGORITHMS, one_in(number), strict=True)]


class Net(L.LightningModule):
    """BatchNorm, dropout, momentum, two rates, a schedule: all that a round's end or a resumed run may get wrong."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.layers[:4].parameters()}, {"params": self.layers[4].parameters(), "lr": 0.05}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)]


def data(batch_size: int = 4, sizes: Sequence[int] = (8, 14, 6, 22, 14, 16)) -> fl.TensorDataModule:
    """Return six clients of unequal sizes, whose last batches have two sizes: PyTorch captures a step for each."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 6, generator=generator).double(), torch.randint(0, 3, (n,), generator=generator)) for n in sizes
    ]
    return fl.TensorDataModule(clients, val=clients[0], batch_size=batch_size)
