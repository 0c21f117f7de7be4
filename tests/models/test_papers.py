"""The networks of the papers have the papers' numbers of parameters, and can be trained and saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.toys import quiet_trainer
from helpers.written import assert_as_in
from torch import nn

from fl_lightning import TensorDataModule
from fl_lightning.models import (
    CharLSTM,
    Classifier,
    ConvNetClassifier,
    LogisticRegressionClassifier,
    MLPClassifier,
    MobileNetV2Classifier,
    ResNet18Classifier,
    VGG9Classifier,
)


def mcmahan_cnn() -> ConvNetClassifier:
    return ConvNetClassifier(in_channels=1, image_size=28, channels=(32, 64), hidden=(512,), padding="same")


def feddyn_cnn(num_classes: int) -> ConvNetClassifier:
    return ConvNetClassifier(num_classes, channels=(64, 64), hidden=(384, 192))


LENET = partial(ConvNetClassifier, channels=(6, 16), hidden=(120, 84))
MODELS: dict[str, tuple[Callable[[], Classifier], tuple[int, ...], int, int]] = {
    # name: model, shape of an input, classes, parameters
    "2nn": (MLPClassifier, (1, 28, 28), 10, 199_210),
    "emnist_mlp": (lambda: MLPClassifier(hidden=(100, 100)), (1, 28, 28), 10, 89_610),
    "covertype_ffn": (lambda: MLPClassifier(49, (64, 64), 2, init="truncated_normal"), (49,), 2, 7_490),
    "mcmahan_cnn": (mcmahan_cnn, (1, 28, 28), 10, 1_663_370),
    "feddyn_cifar10": (lambda: feddyn_cnn(10), (3, 32, 32), 10, 797_962),
    "feddyn_cifar100": (lambda: feddyn_cnn(100), (3, 32, 32), 100, 815_332),
    # 25*channels*32 + 32, 25*32*64 + 64, 64*side*side*10 + 10 with side 5 and 4
    "convnet": (ConvNetClassifier, (3, 32, 32), 10, 2_432 + 51_264 + 16_010),
    "convnet_28": (lambda: ConvNetClassifier(in_channels=1, image_size=28), (1, 28, 28), 10, 832 + 51_264 + 10_250),
    "convnet_16": (lambda: ConvNetClassifier(image_size=16), (3, 16, 16), 10, 2_432 + 51_264 + 650),
    # 75*6 + 6, 150*16 + 16, 400*120 + 120, 120*84 + 84, 84*10 + 10
    "lenet": (LENET, (3, 32, 32), 10, 456 + 2_416 + 48_120 + 10_164 + 850),
    "synthetic": (lambda: LogisticRegressionClassifier(30, 5), (30,), 5, 155),
    "thesis": (lambda: LogisticRegressionClassifier(8_250, 12), (165, 50), 12, 99_012),
    "thesis_weights": (lambda: LogisticRegressionClassifier(8_250, 12, bias=False), (165, 50), 12, 99_000),
    # torchvision's 11,689,512 for 1,000 classes less 513,000 of the last layer, and 512*10 + 10 for the new one
    "resnet18": (ResNet18Classifier, (3, 32, 32), 10, 11_689_512 - 513_000 + 5_130),
    # 3x3 kernels: 9*3*32 + 32 and so on; 4096*512 + 512, 512*512 + 512, 512*10 + 10
    "vgg9": (VGG9Classifier, (3, 32, 32), 10, 896 + 18_496 + 73_856 + 147_584 + 295_168 + 590_080 + 2_365_450),
}


def test_vgg9s_learning_rate_falls_along_a_cosine() -> None:
    module = VGG9Classifier(lr=0.1, cosine_rounds=10)
    [optimizer], [schedule] = module.configure_optimizers()
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(10):
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    # from 0.1 to 0.001 by (1 + cos(pi t / 10)) / 2, half of the way after five rounds
    assert rates[0] == 0.1
    assert [rates[5], rates[10]] == pytest.approx([0.001 + 0.099 / 2, 0.001])
    assert isinstance(VGG9Classifier().configure_optimizers(), torch.optim.SGD)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_logits(name: str) -> None:
    make, shape, classes, parameters = MODELS[name]
    module = make()
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert module(torch.zeros(2, *shape)).shape == (2, classes)


def test_layers_in_their_order(tmp_path: Path) -> None:
    small = ConvNetClassifier(3, in_channels=2, image_size=8, channels=(4, 5), hidden=(6, 7), padding="same")
    modules = {"vgg9": VGG9Classifier(7), "mlp": MLPClassifier(4, (5, 6), 3), "convnet": small}
    lines = [line for name, module in modules.items() for line in (f"# {name}", *map(str, module.layers))]
    assert_as_in(Path(__file__).with_suffix(".txt"), lines, tmp_path)
    assert ResNet18Classifier(groups=4).network.bn1.num_groups == 4


@pytest.mark.parametrize(
    "make",
    [
        *(MLPClassifier, partial(LogisticRegressionClassifier, 4), ConvNetClassifier, VGG9Classifier, CharLSTM),
        *(ResNet18Classifier, partial(MobileNetV2Classifier, weights=None, trainable_from="classifier", dropout=0.4)),
    ],
)
def test_what_all_classifiers_take(make: Callable[..., Classifier]) -> None:
    options = {} if make is CharLSTM else {"metrics": ("f1", "auroc")}
    module = make(num_classes=3, lr=0.25, momentum=0.5, weight_decay=0.125, **options)
    [group] = module.configure_optimizers().param_groups  # type: ignore[union-attr]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.25, 0.5, 0.125)
    for stage in (module.val_metrics, module.test_metrics):
        assert list(stage) == list(options.get("metrics", ["acc"]))
        assert [each.num_classes for name, each in stage.items() if name != "auroc"] == [3]
    if isinstance(module, MobileNetV2Classifier):
        assert str(module.classifier[0]) == "Dropout(p=0.4, inplace=False)"
    adam = LogisticRegressionClassifier(4, 3, 0.25, weight_decay=0.125, optimizer="adam").configure_optimizers()
    assert (type(adam), adam.defaults["lr"], adam.defaults["weight_decay"]) == (torch.optim.Adam, 0.25, 0.125)


def test_checkpoints_rebuild_the_network(tmp_path: Path) -> None:
    trainer = quiet_trainer(max_epochs=1, default_root_dir=tmp_path)
    module = ConvNetClassifier(2, channels=(2, 3), hidden=range(4, 6), image_size=16, metrics=("acc", "f1", "auroc"))
    data = TensorDataModule(clients=[(torch.zeros(2, 3, 16, 16), torch.tensor([0, 1]))])
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = ConvNetClassifier.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert again.hparams["hidden"] == [4, 5]
    assert list(again.val_metrics) == ["acc", "f1", "auroc"]
    for name, value in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def step(module: MLPClassifier, steps: int) -> None:
    """Train on the one sample x = 2 of class 0."""
    data = TensorDataModule(clients=[(torch.tensor([[2.0]]), torch.tensor([0]))], batch_size=1)
    quiet_trainer(max_epochs=steps).fit(module, datamodule=data)


def test_logistic_regression_starts_from_zero_and_penalises_the_weights_only() -> None:
    module = LogisticRegressionClassifier(1, 2, lr=0.1, l2=0.5)
    assert not any(parameter.any() for parameter in module.parameters())
    step(module, 1)  # softmax - one-hot is (-1/2, 1/2), times x = 2 for the weights
    weight, bias = module.parameters()
    assert weight.flatten().tolist() == pytest.approx([0.1, -0.1])
    assert bias.tolist() == pytest.approx([0.05, -0.05])
    # logits 0.25 and -0.25; the penalty is 0.5 * 1/2 * (0.01 + 0.01)
    module.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    objective = module.training_step((torch.tensor([[2.0]]), torch.tensor([0])), 0)
    assert objective.item() == pytest.approx(math.log(1 + math.exp(-0.5)) + 0.005)
    objective.backward()
    missed = 1 - 1 / (1 + math.exp(-0.5))
    assert weight.grad.flatten().tolist() == pytest.approx([-2 * missed + 0.05, 2 * missed - 0.05])
    assert bias.grad.tolist() == pytest.approx([-missed, missed])


def test_logged_training_loss_leaves_the_penalty_out() -> None:
    module = LogisticRegressionClassifier(1, 2, lr=0.0, l2=0.5)
    nn.init.ones_(module.weight)
    data = TensorDataModule(clients=[(torch.tensor([[2.0]]), torch.tensor([0]))])
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics["train_loss"].item() == pytest.approx(math.log(2))


def test_the_cross_entropy_may_take_sigmoids_or_the_softmax() -> None:
    for module, slope in [
        (LogisticRegressionClassifier(1, 2, lr=0.1, sigmoid=True), 1 / 4),
        # the Jacobian at 0 is ((1/4, -1/4), (-1/4, 1/4))
        (MLPClassifier(1, (), 2, lr=0.1, softmax=True), 1 / 2),
    ]:
        weight, bias = module.parameters()
        nn.init.zeros_(weight)
        nn.init.zeros_(bias)
        assert module(torch.tensor([[2.0]])).tolist() == [[0.5, 0.5]]
        step(module, 1)
        # (-1/2, 1/2) as without them, times their slope at 0
        assert weight.flatten().tolist() == pytest.approx([0.1 * slope, -0.1 * slope])
        assert bias.tolist() == pytest.approx([0.05 * slope, -0.05 * slope])
