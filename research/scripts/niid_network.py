"""The small CNN of niid_bench with forward and backward in C++, for tables that take torch days.

    export PYTHONPATH=research/scripts FL_LIGHTNING_EXECUTOR=sequential
    fl-lightning run research/compiled/published_classes.yaml --output runs/published_classes

The library trains it as any other module: the clients, the optimizer's steps and what each method adds to the gradient
are its own. Clients train one after the other, because the C++ has one set of activations. It needs g++.

How far it is from torch, and how long a gradient takes:

    python research/scripts/niid_network.py
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fl_lightning.models import ConvNetClassifier

BATCH = 64
RESULTS = Path(__file__).parents[1] / "results" / "niid_network.csv"


class CompiledConvNet(ConvNetClassifier):
    """`ConvNetClassifier` of two convolutions of 6 and 16 channels and dense layers of 120 and 84, for ten classes.

    Training batches of up to 64 images of float32 go through C++, which gives the outputs and the gradient of torch to
    rounding. Other batches go through torch.

    Raises:
        ValueError: If the layers are others.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        channels, size = self.hparams["in_channels"], self.hparams["image_size"]
        self.image = (channels, size, size)
        with torch.device("meta"):
            known = ConvNetClassifier(in_channels=channels, image_size=size, channels=[6, 16], hidden=[120, 84])
        if str(self.layers) != str(known.layers):
            raise ValueError(f"The compiled network has the layers {known.layers}, got {self.layers}.")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, 10) for images (batch, 1, 28, 28) or (batch, 3, 32, 32)."""
        weights = list(self.parameters())
        is_known = 0 < len(x) <= BATCH and x.shape[1:] == self.image and not x.requires_grad
        is_single = all(tensor.dtype == torch.float32 for tensor in (x, *weights))
        if not (torch.is_grad_enabled() and is_known and is_single):
            return super().forward(x)
        logits: Tensor = _Network.apply(x.contiguous(), *weights)
        return logits


class _Network(torch.autograd.Function):
    """The activations of a forward pass lie in C++ until the next pass: backward makes them anew if they are gone."""

    calls = itertools.count()
    held = -1

    @staticmethod
    def forward(context: Any, images: Tensor, *weights: Tensor) -> Tensor:
        """Return the logits."""
        flat = torch.cat([weight.reshape(-1) for weight in weights])
        context.shapes = [weight.shape for weight in weights]
        context.save_for_backward(images, flat)
        context.call = _Network.held = next(_Network.calls)
        return _Network.logits(images, flat)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return no gradient for the images, and those of the weights."""
        images, flat = context.saved_tensors
        if context.call != _Network.held:
            _Network.logits(images, flat)
        # It is written over the activations.
        _Network.held = -1
        gradient = gradient.contiguous()
        result = torch.empty_like(flat)
        compiled(*images.shape[1:3]).gradient_of(flat.data_ptr(), gradient.data_ptr(), len(gradient), result.data_ptr())
        parts = result.split([shape.numel() for shape in context.shapes])
        return None, *(part.view(shape) for part, shape in zip(parts, context.shapes, strict=True))

    @staticmethod
    def logits(images: Tensor, flat: Tensor) -> Tensor:
        """Return the logits; the activations lie in C++."""
        result = torch.empty(len(images), 10)
        compiled(*images.shape[1:3]).outputs_of(flat.data_ptr(), images.data_ptr(), len(result), result.data_ptr())
        return result


@cache
def compiled(channels: int, size: int) -> ctypes.CDLL:
    """Return the functions of `niid_steps.cpp` for images of some channels and of some height and width."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "niid_steps.so"
        source = Path(__file__).with_name("niid_steps.cpp")
        flags = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
        images = [f"-DCHANNELS={channels}", f"-DSIZE={size}"]
        subprocess.run(["g++", *flags, *images, str(source), "-o", str(result)], check=True)
        library = ctypes.CDLL(str(result))
    for function in (library.outputs_of, library.gradient_of):
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    return library


def gradient(model: nn.Module, images: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
    """Return the gradient of the mean cross-entropy by each weight."""
    loss = nn.functional.cross_entropy(model(images), classes)
    return torch.autograd.grad(loss, list(model.parameters()))


def milliseconds(model: nn.Module, images: Tensor, classes: Tensor) -> float:
    """Return how long a gradient takes: the lower quartile of 100."""
    times = []
    for _ in range(100):
        start = time.perf_counter()
        gradient(model, images, classes)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[25]


def main() -> None:
    """Compare both networks, with one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for channels, size in ((1, 28), (3, 32)):
        network: dict[str, Any] = {
            "in_channels": channels,
            "image_size": size,
            "channels": [6, 16],
            "hidden": [120, 84],
        }
        model, fast = ConvNetClassifier(**network), CompiledConvNet(**network)
        fast.load_state_dict(model.state_dict())
        for batch in (BATCH, 13):
            images, classes = torch.rand(batch, channels, size, size), torch.randint(10, (batch,))
            pairs = zip(gradient(model, images, classes), gradient(fast, images, classes), strict=True)
            rows.append(
                {
                    "images": f"{channels}x{size}x{size}",
                    "batch": batch,
                    "largest_difference": f"{max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs):.1e}",
                    "torch_ms": round(milliseconds(model, images, classes), 2),
                    "cpp_ms": round(milliseconds(fast, images, classes), 2),
                }
            )
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS, index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
