from __future__ import annotations

import math

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.models import Classifier, MLPClassifier


class Constant(Classifier):
    """Two logits, whatever the input: losses and gradients can be written down."""

    def __init__(self, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(2, lr, momentum, weight_decay, ("acc", "f1"))
        self.logits = nn.Parameter(torch.zeros(2))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), 2)


def loader(labels: list[int], batch_size: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.zeros(len(labels), 1), torch.tensor(labels)), batch_size=batch_size)


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
def test_metrics_weigh_samples_not_batches(stage):
    trainer = quiet_trainer(max_epochs=1)
    getattr(trainer, stage)(Constant(lr=0.0), loader([0, 0, 1], batch_size=2))
    prefix = {"fit": "train", "validate": "val", "test": "test"}[stage]
    expected = {f"{prefix}_loss": pytest.approx(math.log(2)), f"{prefix}_acc": pytest.approx(2 / 3)}
    if stage != "fit":
        # 0.8 for the class of two samples, of which all are found among three, and 0 for the other one
        expected[f"{prefix}_f1"] = pytest.approx((2 * 0.8 + 1 * 0.0) / 3)
    assert {name: float(value) for name, value in trainer.callback_metrics.items()} == expected
    shown = f"{prefix}_loss" if stage == "fit" else f"{prefix}_acc"
    assert trainer.progress_bar_metrics == {shown: expected[shown]}


def test_evaluation_steps_hand_out_predictions_and_targets():
    class Collect(L.Callback):
        def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.outputs = outputs

    collect = Collect()
    quiet_trainer(callbacks=[collect]).validate(Constant(), loader([1, 0], batch_size=2), verbose=False)
    assert collect.outputs["preds"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert collect.outputs["target"].tolist() == [1, 0]
    assert collect.outputs["loss"].item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_losses_weigh_samples_where_these_come_second_in_the_inputs(stage: str) -> None:
    class TimeFirst(Constant):
        def forward(self, x: Tensor) -> Tensor:
            return self.logits.expand(x.shape[1], 2)

    module = TimeFirst(lr=0.0)
    module.logits.data = torch.tensor([0.0, math.log(3)])
    # Two steps of three samples of class 1, and five steps of one of class 0: their losses are log(4/3) and log(4).
    batches = [(torch.zeros(2, 3), torch.ones(3, dtype=torch.long)), (torch.zeros(5, 1), torch.tensor([0]))]
    trainer = quiet_trainer(max_epochs=1)
    getattr(trainer, stage)(module, DataLoader(batches, batch_size=None))
    name = {"fit": "train", "validate": "val"}[stage]
    assert float(trainer.callback_metrics[f"{name}_loss"]) == pytest.approx((3 * math.log(4 / 3) + math.log(4)) / 4)
    assert float(trainer.callback_metrics[f"{name}_acc"]) == pytest.approx(3 / 4)


@pytest.mark.parametrize("labelled", [True, False])
def test_predictions_are_the_logits(labelled):
    module = Constant()
    module.logits.data = torch.tensor([0.5, -1.0])
    data = loader([1, 0, 1], batch_size=2) if labelled else DataLoader(torch.zeros(3, 1), batch_size=2)
    assert [batch.tolist() for batch in quiet_trainer().predict(module, data)] == [[[0.5, -1.0]] * 2, [[0.5, -1.0]]]


def test_momentum_and_weight_decay_reach_the_optimizer():
    module = Constant(lr=0.1, momentum=0.9, weight_decay=0.5)
    quiet_trainer(max_epochs=1).fit(module, loader([0, 0, 0, 0], batch_size=2))
    # Step 1: v = (-0.5, 0.5), w = (0.05, -0.05). Step 2: softmax gives p = 1/(1+e^-0.1) to class 0, the gradient is
    # (p - 1) + 0.5 * 0.05, v = 0.9 * -0.5 + gradient, w = 0.05 - 0.1 v.
    p = 1 / (1 + math.exp(-0.1))
    expected = 0.05 - 0.1 * (0.9 * -0.5 + (p - 1) + 0.5 * 0.05)
    assert module.logits.tolist() == pytest.approx([expected, -expected], rel=1e-5)


def test_optimizer_leaves_frozen_parameters_out():
    module = Constant()
    (group,) = module.configure_optimizers().param_groups
    assert [parameter is module.logits for parameter in group["params"]] == [True]


def test_mlp_truncated_normal_initialisation():
    torch.manual_seed(0)
    module = MLPClassifier(init="truncated_normal")
    weights = torch.cat([p.flatten() for name, p in module.named_parameters() if name.endswith("weight")])
    biases = torch.cat([p for name, p in module.named_parameters() if name.endswith("bias")])
    assert weights.abs().max() <= 0.04
    # A standard normal cut at two deviations has standard deviation 0.8796.
    assert weights.std().item() == pytest.approx(0.02 * 0.8796, rel=0.01)
    assert not biases.any()
