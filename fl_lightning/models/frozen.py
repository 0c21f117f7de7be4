"""Layers that are never trained: the frozen first part of a fine-tuned network."""

from __future__ import annotations

import hashlib
from typing import Self

import torch
from torch import Tensor, nn

from fl_lightning.data.tensor_bytes import tensor_bytes
from fl_lightning.settings import check

# Convolution kernels treat the last rows of a batch differently when the batch is no multiple of their block (16 rows
# on AVX-512, 8 on AVX2), which moves those rows by some 1e-6. Batches filled up to whole blocks give each row the same
# bits whatever batch it came in, so that outputs computed once for all data equal those computed batch by batch. Some
# other kernels treat odd rows unlike even ones, even in a block: MKL's products of small float32 matrices, such as
# Linear(6, 10), and float64 convolutions in channels_last. Filling up does not help there.
_BLOCK_ROWS = 16


class FrozenPrefix(nn.Module):
    """Wraps layers, freezes them, and keeps them in evaluation mode.

    The parameters have ``requires_grad=False``, :meth:`forward` records no graph, and ``train()`` leaves the layers in
    evaluation mode, so that dropout stays off and BatchNorm's running statistics never change, whoever trains the rest
    of the network. The weights are kept in ``channels_last`` layout, which about doubles the speed of
    convolutions on a CPU; the output is contiguous.

    Batches are filled up with zero rows to a multiple of 16. On a CPU, 32-bit convolutions then give an input row the
    same bits in any batch. With small linear layers and 64-bit convolutions, a row's place in the batch may move its
    output by rounding. The number of threads, the device and, on a GPU, the batch size may do so with any layer, in 32
    bits by about 1e-6 of the largest output.

    Args:
        layers: The layers to freeze. They are frozen in place and take inputs of shape (batch, ...); each row of the
            output must depend only on its own input row.

    Attributes:
        bypass: When true, :meth:`forward` returns its input unchanged, for inputs that already are this prefix's
            outputs (:class:`~fl_lightning.callbacks.FrozenPrefixCache`). The ``state_dict`` is the same either way.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        check("`layers`", layers, nn.Module)
        self.layers = layers.requires_grad_(False).to(memory_format=torch.channels_last)
        self.bypass = False
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, and ignore ``mode``."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers without recording a graph.

        Args:
            x: Inputs of shape (batch, ...), or the layers' outputs when ``bypass`` is set.

        Returns:
            The layers' outputs, one row per input row; ``x`` itself when ``bypass`` is set.
        """
        if self.bypass:
            return x
        rows = x.shape[0]
        missing = -rows % _BLOCK_ROWS
        with torch.no_grad():
            if missing:
                zeros = x.new_zeros(missing, *x.shape[1:])
                x = torch.cat([x, zeros])
            output: Tensor = self.layers(x)
            return output[:rows].contiguous()

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) of the layers' weights, buffers and configuration.

        The configuration is the layers' ``repr``, which names their classes and settings (an image size included).
        """
        digest = hashlib.sha256(repr(self.layers).encode())
        tensor: Tensor
        for name, tensor in self.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor_bytes(tensor))
        return digest.hexdigest()
