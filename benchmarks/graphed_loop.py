"""The plain loop with its step as a CUDA graph: what a careful user would write by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from plain_loop import PlainLoop
from torch import Tensor
from torch.nn import functional as F

#: Steps before a capture, as torch's documentation asks for.
_WARM_UP = 3


@dataclass
class _Step:
    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor


class GraphedLoop(PlainLoop):
    """A federated round by hand whose steps, forward, backward and plain SGD, are replayed: one graph for each size.

    It serves FedAvg and RADFed's clients with plain SGD.
    """

    _steps: dict[int, _Step] | None = None

    def _train(self, client: int) -> Tensor:
        x, y = self.clients[client]
        if self._steps is None:
            self._steps = {}
        self._write(self.server)
        for _ in range(self.work.epochs):
            order = torch.randperm(len(x), generator=self.generator).to(self.device)
            for index in order.split(self.work.batch_size):
                size = len(index)
                if size not in self._steps:
                    # Its warm-up takes steps.
                    before = self._read()
                    self._steps[size] = self._capture(x[:size], y[:size])
                    self._write(before)
                step = self._steps[size]
                torch.index_select(x, 0, index, out=step.x)
                torch.index_select(y, 0, index, out=step.y)
                step.graph.replay()
        return self._read()

    def _capture(self, x: Tensor, y: Tensor) -> _Step:
        step = _Step(torch.cuda.CUDAGraph(), x.clone(), y.clone())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._step(step)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(step.graph):
            self._step(step)
        return step

    def _step(self, step: _Step) -> None:
        parameters = list(self.network.parameters())
        loss = F.cross_entropy(self.network(step.x), step.y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-self.work.lr)
