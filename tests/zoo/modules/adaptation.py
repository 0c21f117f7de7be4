"""Parts that are frozen, follow other parts, are tied, or are held to a set."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zoo.entry import CLASSES, FEATURES, Data, Entry, vectors
from zoo.modules.base import Classifier, perceptron


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices, as in peft."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)
        self.scaling = {"default": 2.0}
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        for name in self.lora_A:
            adapted = self.lora_B[name](self.lora_A[name](self.lora_dropout[name](x)))
            result = result + adapted * self.scaling[name]
        return result


class Lora(Classifier):
    def __init__(self) -> None:
        super().__init__(
            nn.Sequential(LoraLinear(nn.Linear(FEATURES, 5)), nn.ReLU(), LoraLinear(nn.Linear(5, CLASSES)))
        )

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-2)


class FrozenBackbone(Classifier):
    """Features of a network in eval mode without gradients, as in Lightning's guide to transfer learning."""

    def prepare(self) -> None:
        self.backbone = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES), nn.Dropout(0.5))
        self.backbone.eval().requires_grad_(False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.backbone.eval()
        with torch.no_grad():
            features = self.backbone(x)
        return F.cross_entropy(self(features), y)


class PartlyFrozen(Classifier):
    def prepare(self) -> None:
        self.layers[0].requires_grad_(False)


class MomentumTeacher(Classifier):
    """A frozen copy of the network follows it in each step, as in BYOL."""

    def prepare(self) -> None:
        self.teacher = copy.deepcopy(self.layers).requires_grad_(False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.layers.parameters(), strict=True):
                own.lerp_(other, 0.1)
            target = self.teacher(x)
        return F.cross_entropy(self(x), y) + F.mse_loss(self(x), target)


class TeacherAfterBatch(MomentumTeacher):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y) + F.mse_loss(self(x), self.teacher(x).detach())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.layers.parameters(), strict=True):
                own.copy_(0.9 * own + 0.1 * other)


class TeacherOfTorch(Classifier):
    """torch's AveragedModel, updated when the epoch ends."""

    def prepare(self) -> None:
        self.average = AveragedModel(self.layers, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)

    def on_train_epoch_end(self) -> None:
        self.average.update_parameters(self.layers)


class AverageInBuffer(Classifier):
    """A moving average of a weight in a buffer, which is part of the client's model."""

    def prepare(self) -> None:
        self.register_buffer("average", self.layers[0].weight.detach().clone())

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.average.lerp_(self.layers[0].weight, 0.1)
        return super().loss(batch, batch_idx) + 0.1 * (self.layers[0].weight - self.average).square().sum()


class Tied(Classifier):
    """An autoencoder whose decoder is the encoder's transpose."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        return F.mse_loss(F.linear(self.layers[1](self.layers[0](x)), self.layers[0].weight.t()), x)


class SharedLayer(Classifier):
    def __init__(self) -> None:
        shared = nn.Linear(FEATURES, FEATURES)
        super().__init__(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(FEATURES, CLASSES)))


class WeightNorm(Classifier):
    def prepare(self) -> None:
        parametrizations.weight_norm(self.layers[0])


class SpectralNorm(Classifier):
    def prepare(self) -> None:
        parametrizations.spectral_norm(self.layers[0])


class OldSpectralNorm(Classifier):
    def prepare(self) -> None:
        nn.utils.spectral_norm(self.layers[0])


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class SymmetricWeight(Classifier):
    def __init__(self) -> None:
        super().__init__(perceptron(nn.Linear(5, 5)))
        parametrize.register_parametrization(self.layers[2], "weight", Symmetric())


class UnitRows(Classifier):
    """Projects the rows of a weight onto the sphere before each step."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.layers[0].weight.div_(self.layers[0].weight.norm(dim=1, keepdim=True))
        return super().loss(batch, batch_idx)


class UnitRowsByData(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.layers[0].weight.data = F.normalize(self.layers[0].weight.data, dim=1)
        return super().loss(batch, batch_idx)


class Clamped(Classifier):
    """Clamps a weight after the optimizer's step, as critics of WGAN do."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.layers.parameters():
            parameter.data.clamp_(-0.3, 0.3)


class Functional(Classifier):
    """Calls the network with changed weights (sharpness-aware by hand)."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        parameters = dict(self.layers.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        moved = {name: p + 0.01 * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
        return F.cross_entropy(torch.func.functional_call(self.layers, moved, (x,)), y)


class HeldElsewhere(Classifier):
    """Regularises through a list of parameters that was made at the start."""

    def prepare(self) -> None:
        self.penalised = [p for p in self.layers.parameters() if p.dim() > 1]

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) + 1e-2 * sum(p.square().sum() for p in self.penalised)


class HeldForLater(HeldElsewhere):
    """The list is used from a client's second batch on."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = Classifier.loss(self, batch, batch_idx)
        return loss if batch_idx == 0 else loss + 1e-2 * sum(p.square().sum() for p in self.penalised)


class HeldFromFifthBatch(HeldElsewhere):
    """The list is used from a client's fifth batch on."""

    first = 4

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = Classifier.loss(self, batch, batch_idx)
        return loss if batch_idx < self.first else loss + 1e-1 * sum(p.square().sum() for p in self.penalised)


class HeldFromNinthBatch(HeldFromFifthBatch):
    """The list is used from a client's ninth batch on, which one client alone reaches."""

    first = 8


class HeldFromSecondRound(HeldElsewhere):
    """The list is used from the second round on."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = Classifier.loss(self, batch, batch_idx)
        return loss if self.current_epoch == 0 else loss + 1e-1 * sum(p.square().sum() for p in self.penalised)


def one_long_client(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return clients of four batches each, but one of nine."""
    return vectors([35 if client == 4 else 14 for client in range(len(sizes))], dtype)


ENTRIES = [
    Entry("LoRA on a frozen base", Lora),
    Entry("frozen backbone in eval mode", FrozenBackbone),
    Entry("first layer frozen", PartlyFrozen),
    Entry("teacher follows in training_step", MomentumTeacher),
    Entry("teacher follows in on_train_batch_end", TeacherAfterBatch),
    Entry("AveragedModel at the epoch's end", TeacherOfTorch),
    Entry("moving average in a buffer", AverageInBuffer),
    Entry("tied autoencoder", Tied),
    Entry("layer used twice", SharedLayer),
    Entry("weight_norm", WeightNorm),
    Entry("spectral_norm", SpectralNorm),
    Entry("spectral_norm by hook", OldSpectralNorm),
    Entry("symmetric parametrization", SymmetricWeight),
    Entry("unit rows under no_grad", UnitRows),
    Entry("unit rows by .data", UnitRowsByData),
    Entry("weights clamped after the step", Clamped),
    Entry("functional_call, second order", Functional),
    Entry("penalty through a list", HeldElsewhere),
    Entry("list used from the second batch on", HeldForLater),
    Entry("list used from the fifth batch on", HeldFromFifthBatch),
    Entry("list used from the ninth batch on", HeldFromNinthBatch, one_long_client),
    Entry("list used from the second round on", HeldFromSecondRound),
]
