"""Multinomial logistic regression, the convex model of the experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from fl_lightning.models.classifier import Classes, MetricName
from fl_lightning.models.mlp import MLPClassifier
from fl_lightning.settings import Count, NotNegative


class LogisticRegressionClassifier(MLPClassifier):
    """A linear layer from the inputs to the logits, which starts from zero.

    Its objective is the mean cross-entropy plus ``l2 * 1/2 |W|^2``; the bias is not penalised. ``train_loss`` is the
    cross-entropy alone, comparable with ``val_loss``.

    In the papers: ``l2=0.01, metrics=("acc", "auroc")`` for eICU's hospitals (Xue et al. 2021); 30 inputs, 5 classes
    and 155 parameters, ``weight_decay=1e-5``, for synthetic data (Acar et al. 2021); 8,250 inputs, 12 classes, 99,000
    weights (99,012 with the bias), ``optimizer="adam", lr=1e-3``, for web pages by topic (van Lier 2018).

    Args:
        in_features: Number of values of one input of any shape; inputs are flattened.
        num_classes: Number of classes.
        lr: Learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of the optimizer; unlike ``l2`` it acts on the bias, too.
        metrics: What validation and test log besides the loss, as in :class:`Classifier`.
        l2: Strength of the penalty on the weights.
        bias: Whether there is a bias.
        optimizer: ``"sgd"`` or ``"adam"``.
        sigmoid: Whether the cross-entropy takes sigmoids of the outputs in place of the outputs, as the logistic
            regression of FedML and FLUTE does. Its loss stays above ``log(1 + (C - 1) / e)`` for C classes.

    Raises:
        ValueError: If ``l2`` is negative, ``optimizer`` is neither of the two, or Adam is given a ``momentum``.

    Example:
        >>> import torch
        >>> LogisticRegressionClassifier(in_features=4, num_classes=3)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        in_features: Count,
        num_classes: Classes,
        lr: NotNegative = 0.1,
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
        l2: NotNegative = 0.0,
        bias: bool = True,
        optimizer: Literal["sgd", "adam"] = "sgd",
        sigmoid: bool = False,
    ) -> None:
        super().__init__(in_features, (), num_classes, lr, momentum, weight_decay, metrics)
        if optimizer == "adam" and momentum != 0:
            raise ValueError(f"`momentum` must be 0 with `optimizer='adam'`, which does not use it, got {momentum!r}.")
        self.l2 = l2
        self.optimizer_name = optimizer
        self.sigmoid = sigmoid
        linear = nn.Linear(in_features, num_classes, bias)
        nn.init.zeros_(linear.weight)
        if bias:
            nn.init.zeros_(linear.bias)
        self.layers[-1] = linear

    @property
    def weight(self) -> Tensor:
        """The weights W, shape (num_classes, in_features)."""
        return cast(nn.Linear, self.layers[-1]).weight

    def forward(self, x: Tensor) -> Tensor:
        """Return what the cross-entropy takes, shape (batch, num_classes), for ``x`` of shape (batch, ...)."""
        outputs = super().forward(x)
        return outputs.sigmoid() if self.sigmoid else outputs

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the objective on a batch ``(x, y)``: mean cross-entropy plus penalty."""
        loss = super().training_step(batch, batch_idx)
        if not self.l2:
            return loss
        return loss + 0.5 * self.l2 * self.weight.square().sum()

    def configure_optimizers(self) -> Optimizer:
        """Return SGD or Adam over all parameters."""
        if self.optimizer_name == "adam":
            return Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        return super().configure_optimizers()
