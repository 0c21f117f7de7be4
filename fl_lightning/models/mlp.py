"""Multi-layer perceptrons, among them the 2NN of McMahan et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from fl_lightning.models.classifier import Classes, Classifier, MetricName
from fl_lightning.settings import Count, NotNegative


class MLPClassifier(Classifier):
    """Fully connected layers with ReLU between them.

    Networks of the papers, with their numbers of parameters:

    * 784-200-200-10, the defaults: 199,210, the 2NN of McMahan et al. 2017; for MNIST in all papers.
    * 784-100-100-10, ``hidden=(100, 100)``: 89,610, for ten letters of EMNIST (Acar et al. 2021).
    * 49-64-64-2, ``in_features=49, hidden=(64, 64), num_classes=2``: 7,490, for Covertype (Xue et al. 2021).

    Args:
        in_features: Number of values of one input of any shape; inputs are flattened.
        hidden: Width of each hidden layer; for none see :class:`LogisticRegressionClassifier`.
        num_classes: Number of classes.
        lr: Learning rate of SGD.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        metrics: What validation and test log besides the loss, as in :class:`Classifier`.
        init: ``"default"`` for PyTorch's initialisation, ``"truncated_normal"`` for weights drawn from a normal
            distribution of standard deviation 0.02 cut at two deviations, and zero biases (Xue et al. 2021).
        softmax: Whether the cross-entropy takes the softmax of the outputs in place of the outputs, and so softmax is
            taken twice, as the MLP of Flower's baseline heterofl does. Its loss stays above ``log(1 + (C - 1) / e)``
            for C classes.

    Raises:
        ValueError: If a width is below 1, or ``init`` is neither of the two.

    Example:
        >>> module = MLPClassifier(in_features=784, hidden=(200, 200), num_classes=10)
        >>> sum(parameter.numel() for parameter in module.parameters())
        199210
    """

    def __init__(
        self,
        in_features: Count = 784,
        hidden: Sequence[Count] = (200, 200),
        num_classes: Classes = 10,
        lr: NotNegative = 0.1,
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
        metrics: Sequence[MetricName] = ("acc",),
        init: Literal["default", "truncated_normal"] = "default",
        softmax: bool = False,
    ) -> None:
        super().__init__(num_classes, lr, momentum, weight_decay, metrics)
        layers: list[nn.Module] = [nn.Flatten()]
        width = in_features
        for next_width in hidden:
            layers.append(nn.Linear(width, next_width))
            layers.append(nn.ReLU())
            width = next_width
        layers.append(nn.Linear(width, num_classes))
        self.layers = nn.Sequential(*layers)
        self.softmax = softmax
        if init == "truncated_normal":
            self.layers.apply(_truncated_normal)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the cross-entropy takes, shape (batch, num_classes), for ``x`` of shape (batch, ...)."""
        outputs: Tensor = self.layers(x)
        return outputs.softmax(dim=1) if self.softmax else outputs


def _truncated_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.zeros_(module.bias)
