"""A recurrent network that predicts the next character of a text."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning.models.classifier import Classes, Classifier
from fl_lightning.settings import Count, NotNegative


class CharLSTM(Classifier):
    """Embedding, stacked LSTM layers and a dense layer on the last step's output.

    The defaults are the network of Xue et al. 2021 for Shakespeare, 8-d embedding, 2x256 LSTM and 80 outputs, with
    817,872 parameters; ``CharLSTM(hidden_size=100, cell="torch", lr=1.0)`` is that of Acar et al. 2021, with 133,520.

    Args:
        num_classes: Number of characters, of the inputs and of the prediction.
        lr: Learning rate of SGD.
        embedding_dim: Length of a character's embedding.
        hidden_size: Width of each LSTM layer.
        num_layers: Number of LSTM layers.
        cell: ``"tensorflow"`` has one bias per gate, Glorot-uniform weights, zero biases, and 1 for the forget gate's;
            ``"torch"`` has two biases per gate, as ``torch.nn.LSTM``, and PyTorch's initialisation.
        recurrence: ``"fused"`` runs PyTorch's LSTM kernel; ``"plain"`` is the same written in elementary operations,
            several times slower alone, which ``torch.func.vmap`` can batch over models. The parameters are the same,
            so that a checkpoint of one is a checkpoint of the other; results agree up to rounding.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.

    Raises:
        ValueError: If a size is below 1, or ``cell`` or ``recurrence`` is unknown.

    Example:
        >>> import torch
        >>> CharLSTM(hidden_size=16)(torch.zeros(2, 80, dtype=torch.int64)).shape
        torch.Size([2, 80])
    """

    def __init__(
        self,
        num_classes: Classes = 80,
        lr: NotNegative = 0.5,
        embedding_dim: Count = 8,
        hidden_size: Count = 256,
        num_layers: Count = 2,
        cell: Literal["tensorflow", "torch"] = "tensorflow",
        recurrence: Literal["fused", "plain"] = "fused",
        momentum: NotNegative = 0.0,
        weight_decay: NotNegative = 0.0,
    ) -> None:
        super().__init__(num_classes, lr, momentum, weight_decay)
        self.embedding = nn.Embedding(num_classes, embedding_dim)
        layers: list[nn.Module] = []
        width = embedding_dim
        for _ in range(num_layers):
            layers.append(_LSTMLayer(width, hidden_size, cell, recurrence))
            width = hidden_size
        self.layers = nn.Sequential(*layers)
        self.logits = nn.Linear(hidden_size, num_classes)
        if cell == "tensorflow":
            nn.init.xavier_uniform_(self.embedding.weight)
            nn.init.xavier_uniform_(self.logits.weight)
            nn.init.zeros_(self.logits.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, num_classes) for characters ``x``, integers of shape (batch, time)."""
        states = self.layers(self.embedding(x.long()))
        logits: Tensor = self.logits(states[:, -1])
        return logits


class _LSTMLayer(nn.Module):
    """One LSTM layer, gates in PyTorch's order: input, forget, cell, output.

    ``nn.LSTM`` always has two biases per gate, of which only the sum matters, and hides its weights from
    ``torch.func``; here the second one is optional, and weights are read at each call.
    """

    def __init__(self, input_size: int, hidden_size: int, cell: str, recurrence: str) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.recurrence = recurrence
        gates = 4 * hidden_size
        bound = 1 / math.sqrt(hidden_size)
        # Glorot's initialisation looks at one matrix from input and state to the four gates.
        if cell == "tensorflow":
            bound = math.sqrt(6 / (input_size + hidden_size + gates))

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.weight_ih = drawn(gates, input_size)
        self.weight_hh = drawn(gates, hidden_size)
        if cell == "tensorflow":
            bias = torch.zeros(gates)
            # The gate that forgets begins open.
            bias[hidden_size : 2 * hidden_size] = 1
            self.bias_ih = nn.Parameter(bias)
            self.register_buffer("bias_hh", torch.zeros_like(bias), persistent=False)
        else:
            self.bias_ih = drawn(gates)
            self.bias_hh = drawn(gates)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all steps, (batch, time, hidden_size), for inputs (batch, time, input_size)."""
        if self.recurrence == "plain":
            return self._plain(x)
        state = x.new_zeros(1, len(x), self.hidden_size)
        weights: list[Tensor] = [self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh]
        outputs: Tensor
        outputs, _, _ = torch.lstm(
            x,
            (state, state),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return outputs

    def _plain(self, x: Tensor) -> Tensor:
        # One product for the inputs of all steps: only that with the state needs the loop.
        steps = F.linear(x, self.weight_ih, self.bias_ih + self.bias_hh).unbind(1)
        state = torch.zeros_like(steps[0][:, : self.hidden_size])
        cell = state
        outputs = []
        for step in steps:
            gates = step + state @ self.weight_hh.T
            into, forget, new, out = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = out.sigmoid() * cell.tanh()
            outputs.append(state)
        return torch.stack(outputs, dim=1)
