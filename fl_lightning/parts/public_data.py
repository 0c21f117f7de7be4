"""Models on public data: their logits, and steps by which one learns the logits of others.

A model is a vector here; the module lends its forward pass, and stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from fl_lightning.functional import called_with, tensors_by_name
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Layout
from fl_lightning.seeding import Stream, seeded

#: What a model is to return for each row of logits, shape ``(rows, classes)``, and how far it is from that.
Loss = Callable[[Tensor, Tensor], Tensor]


def check_loader(name: str, loader: DataLoader[Any]) -> None:
    """Raise ``ValueError`` for a loader of public batches that has no batch, or draws otherwise in a resumed fit."""
    if loader.generator is not None:
        raise ValueError(
            f"`{name}` must draw from the global generators, which are seeded for each round, got a DataLoader with a "
            "`generator` of its own. Leave that out."
        )
    if len(loader) == 0:
        raise ValueError(f"`{name}` must have a batch, got an empty DataLoader.")


class PublicData:
    """Batches of public samples, and a module that makes logits of them, in eval mode.

    Args:
        module: The module; its ``forward`` returns logits, with classes in the last dimension.
        loader: Public batches: inputs, or a tuple or list whose first element they are.
        federation: The run.

    Raises:
        ValueError: If the module lacks tensors of the model.
    """

    def __init__(self, module: nn.Module, loader: DataLoader[Any], federation: Federation) -> None:
        self._module = module
        self._loader = loader
        self._federation = federation
        known = tensors_by_name(module)
        missing = [name for name in federation.names if name not in known]
        if missing:
            raise ValueError(
                f"`module` must have the tensors of the module that is trained, and lacks {missing[:3]}. Give the same "
                "module, or one of the same class."
            )
        self._kinds = {name: known[name].dtype for name in federation.names}

    @property
    def _layout(self) -> Layout:
        return self._federation.layout

    @contextmanager
    def batches(self, round_index: int, number: int) -> Iterator[Iterator[Any]]:
        """Give the inputs of so many batches of a round, pass after pass, with the module in eval mode.

        Args:
            round_index: The round, on which the order of samples depends.
            number: Number of batches.
        """
        federation = self._federation
        device = federation.model.device
        seeds = (round_index, federation.num_clients)
        with self.evaluating(), seeded(federation.seed, Stream.PARTS, *seeds, device=device):
            yield self._inputs(number)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep the module in eval mode."""
        modes = [(part, part.training) for part in self._module.modules()]
        self._module.eval()
        try:
            yield
        finally:
            for part, mode in modes:
                part.training = mode

    def _inputs(self, number: int) -> Iterator[Any]:
        made = 0
        while made < number:
            for batch in self._loader:
                if made == number:
                    return
                inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
                yield tree_map(self._here, inputs)
                made += 1

    def _here(self, leaf: Any) -> Any:
        return leaf.to(self._federation.model.device) if isinstance(leaf, Tensor) else leaf

    def tensors(self, model: Tensor) -> dict[str, Tensor]:
        """Return a model's tensors by name, in the module's types."""
        named: dict[str, Tensor] = {}
        for name, tensor in self._layout.named(model.detach()).items():
            kind = self._kinds[name]
            named[name] = tensor.to(kind) if kind.is_floating_point else tensor.round().to(kind)
        return named

    def logits(self, tensors: dict[str, Tensor], inputs: Any) -> Tensor:
        """Return a model's logits of a batch, shape ``(rows, classes)``."""
        logits: Tensor = called_with(self._module, tensors, (inputs,))
        return logits.reshape(-1, logits.shape[-1])

    def mean_logits(self, models: Sequence[dict[str, Tensor]], inputs: Any) -> Tensor:
        """Return the mean of several models' logits of a batch, without gradients, shape ``(rows, classes)``."""
        with torch.no_grad():
            return torch.stack([self.logits(tensors, inputs) for tensors in models]).mean(0)

    def learnt(
        self, start: Tensor, lessons: Iterable[tuple[Any, Tensor]], loss: Loss, make: Callable[..., Optimizer],
        rates: Sequence[float],
    ) -> Tensor:  # fmt: skip
        """Return the parameters of a model that has learnt, shape ``(num_parameters,)``; its buffers stay.

        Args:
            start: Where it starts, shape ``(size,)``.
            lessons: The inputs and the targets of each step.
            loss: Of its logits and the targets.
            make: Makes the optimizer of parameters and a learning rate.
            rates: The learning rate of each step.
        """
        tensors = self.tensors(start)
        trained = self._layout.trained
        for name in trained:
            tensors[name] = tensors[name].clone().requires_grad_()
        parameters = [tensors[name] for name in trained]
        optimizer = make(parameters, lr=rates[0])
        with torch.enable_grad():
            for rate, (inputs, targets) in zip(rates, lessons, strict=False):
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.zero_grad()
                torch.autograd.backward(loss(self.logits(tensors, inputs), targets), inputs=parameters)
                optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in parameters])


def cosine_rates(lr: float, steps: int) -> list[float]:
    """Return learning rates that fall along a half cosine, from ``lr`` in the first step towards 0 after the last."""
    return [lr / 2 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]
