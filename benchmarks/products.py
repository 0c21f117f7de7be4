"""The limit of stacked clients: a round as bare batched products, without any framework, log or data module.

All clients of a round at once: forward pass, gradient and plain SGD's step by products into memory that is reused. It
serves equal clients alone (W1 and W2).
"""

from __future__ import annotations

import time

import torch
from federations import WORKLOADS, Clients, make_network
from torch import Tensor, nn


class BareProducts:
    """Rounds of FedAvg on stacked perceptrons, by hand."""

    def __init__(self, name: str, clients: Clients) -> None:
        self.work, self.clients = WORKLOADS[name], clients
        layers = [layer for layer in make_network(name) if isinstance(layer, nn.Linear)]
        self.server = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in layers]
        k, b = self.work.per_round, self.work.batch_size
        self.outputs = [torch.empty(k, b, len(weight)) for weight, _ in self.server]
        self.passed = [torch.empty(k, b, weight.shape[1]) for weight, _ in self.server]
        self.generator = torch.Generator().manual_seed(1)

    def round(self) -> float:
        """Train a round and return its seconds."""
        begun = time.perf_counter()
        work, k = self.work, self.work.per_round
        drawn = torch.randperm(len(self.clients), generator=self.generator)[:k].tolist()
        orders = [torch.randperm(work.samples, generator=self.generator) for _ in drawn]
        x = torch.stack([self.clients[c][0].index_select(0, order) for c, order in zip(drawn, orders, strict=True)])
        y = torch.stack([self.clients[c][1].index_select(0, order) for c, order in zip(drawn, orders, strict=True)])
        targets = torch.zeros(k, work.samples, work.classes).scatter_(2, y.unsqueeze(2), 1.0)
        models = [(w.repeat(k, 1, 1), b.repeat(k, 1, 1)) for w, b in self.server]
        for begin in range(0, work.samples, work.batch_size):
            span = slice(begin, begin + work.batch_size)
            self._step(models, x[:, span], targets[:, span])
        self.server = [(w.mean(0), b.mean(0)[0]) for w, b in models]
        return time.perf_counter() - begun

    def _step(self, models: list[tuple[Tensor, Tensor]], x: Tensor, targets: Tensor) -> None:
        hidden, last = [x], len(models) - 1
        for number, (weight, bias) in enumerate(models):
            out = torch.baddbmm(bias, hidden[-1], weight.transpose(1, 2), out=self.outputs[number])
            hidden.append(out if number == last else out.relu_())
        gradient = torch.softmax(hidden[-1], 2).sub_(targets)
        rate = -self.work.lr / self.work.batch_size
        for number in range(last, -1, -1):
            weight, bias = models[number]
            passed = torch.bmm(gradient, weight, out=self.passed[number]) if number else None
            weight.baddbmm_(gradient.transpose(1, 2), hidden[number], alpha=rate)
            bias.add_(gradient.sum(1, keepdim=True), alpha=rate)
            if passed is not None:
                gradient = passed.mul_(hidden[number] > 0)
