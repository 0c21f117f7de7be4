"""Any optimizer of PyTorch on the server."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.settings import Scheduled, check
from fl_lightning.words import short_repr


class TorchServer(ServerOptimizer):
    """Any optimizer of PyTorch on the server, whose gradient is ``w - aggregate``; SGD with ``lr=1`` is FedAvg.

    The optimizer sees one parameter for each parameter tensor of the module. It keeps its state from round to round.

    Args:
        optimizer: A class such as ``torch.optim.AdamW``; its ``step`` must need no closure.
        lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        options: The optimizer's other arguments, such as ``weight_decay=0.01``.

    Raises:
        TypeError: If ``optimizer`` cannot be called, or has no such option.
        ValueError: If ``lr`` or an option is out of its range.
    """

    optimizer: Callable[..., Optimizer]
    lr: Scheduled

    def __init__(self, optimizer: type[Optimizer], lr: Scheduled = 1.0, **options: Any) -> None:
        self.optimizer = check("`optimizer`", optimizer, Callable)
        self.lr = check("`lr`", lr, Scheduled)
        self.options = options
        # A wrong option is an error here, not in the first round.
        self._make([torch.zeros(1)])

    @override
    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"TorchServer({short_repr(self.optimizer)}, lr={short_repr(self.lr)}{options})"

    @override
    def setup(self, federation: Federation) -> None:
        self.state: dict[str, Any] | None
        self.add_state("state", None)

    @override
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        current = model.to(aggregate.dtype, copy=True)
        layout = self.federation.layout
        parameters = layout.views(current)
        targets = layout.views(aggregate)
        for parameter, target in zip(parameters, targets, strict=True):
            parameter.grad = parameter - target
        optimizer = self._make(parameters)
        if self.state is not None:
            # The step writes to the state, which must stay as it is if the round breaks off.
            optimizer.load_state_dict(deepcopy(self.state))
        for group in optimizer.param_groups:
            group["lr"] = self.at("lr")
        optimizer.step()
        self.state = optimizer.state_dict()
        return current

    def _make(self, parameters: list[Tensor]) -> Optimizer:
        return self.optimizer(parameters, lr=self.at("lr"), **self.options)
