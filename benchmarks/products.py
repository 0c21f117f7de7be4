"""The limit of stacked clients: a round as bare batched products, without any framework, log or data module.

All clients of a round at once: forward pass, gradient and plain SGD's step by products into memory that is reused.
Clients of unequal sizes are sorted by their numbers of batches; each step takes those that are not finished, and
samples beyond a client's last one weigh nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from federations import ByHand, make_network
from torch import Tensor, nn

#: The workloads whose networks are linear layers and ReLU, under FedAvg.
SERVED = ("W1", "W2", "W7", "H1", "H2", "M1")


class BareProducts(ByHand):
    """Rounds of FedAvg on stacked perceptrons, by hand."""

    def _prepare(self, name: str) -> None:
        device = self.device
        layers = [layer for layer in make_network(name) if isinstance(layer, nn.Linear)]
        self.server = [(layer.weight.detach().to(device), layer.bias.detach().to(device)) for layer in layers]
        k, b = self.work.per_round, self.work.batch_size
        self.outputs = [torch.empty(k, b, len(weight), device=device) for weight, _ in self.server]
        self.passed = [torch.empty(k, b, weight.shape[1], device=device) for weight, _ in self.server]

    def round(self, drawn: Sequence[int] = ()) -> float:
        """Train a round of some clients, or of drawn ones, and return its seconds."""
        begun = self._clock()
        k, b = self.work.per_round, self.work.batch_size
        drawn = drawn or torch.randperm(len(self.clients), generator=self.generator)[:k].tolist()
        drawn = sorted(drawn, key=lambda client: -len(self.clients[client][1]))
        batches = [-(-len(self.clients[client][1]) // b) for client in drawn]
        x, targets, weights = self._gather(drawn, batches[0] * b)
        models = [(weight.repeat(k, 1, 1), bias.repeat(k, 1, 1)) for weight, bias in self.server]
        for step in range(batches[0]):
            active = sum(number > step for number in batches)
            span = slice(step * b, (step + 1) * b)
            at_work = [(weight[:active], bias[:active]) for weight, bias in models]
            self._step(at_work, x[:active, span], targets[:active, span], weights[:active, span])
        self.server = [(weight.mean(0), bias.mean(0)[0]) for weight, bias in models]
        return self._clock() - begun

    def _gather(self, drawn: list[int], most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets as negative weights of the right class, and samples' weights, in the epoch's order."""
        work, k = self.work, len(drawn)
        x = torch.empty(k, most, *work.shape, device=self.device)
        y = torch.zeros(k, most, 1, dtype=torch.int64, device=self.device)
        weights = torch.zeros(k, most, 1, device=self.device)
        for row, client in enumerate(drawn):
            own_x, own_y = self.clients[client]
            n, last = len(own_y), len(own_y) % work.batch_size
            order = torch.randperm(n, generator=self.generator).to(self.device)
            torch.index_select(own_x, 0, order, out=x[row, :n])
            x[row, n:] = 0
            torch.index_select(own_y, 0, order, out=y[row, :n, 0])
            weights[row, :n] = 1 / work.batch_size
            weights[row, n - last : n] = 1 / max(1, last)
        targets = torch.zeros(k, most, work.classes, device=self.device).scatter_(2, y, -weights)
        return x, targets, weights

    def _step(self, models: list[tuple[Tensor, Tensor]], x: Tensor, targets: Tensor, weights: Tensor) -> None:
        hidden, last, k = [x], len(models) - 1, len(x)
        for number, (weight, bias) in enumerate(models):
            out = torch.baddbmm(bias, hidden[-1], weight.transpose(1, 2), out=self.outputs[number][:k])
            hidden.append(out if number == last else out.relu_())
        gradient = torch.addcmul(targets, torch.softmax(hidden[-1], 2), weights)
        for number in range(last, -1, -1):
            weight, bias = models[number]
            passed = torch.bmm(gradient, weight, out=self.passed[number][:k]) if number else None
            weight.baddbmm_(gradient.transpose(1, 2), hidden[number], alpha=-self.work.lr)
            bias.add_(gradient.sum(1, keepdim=True), alpha=-self.work.lr)
            if passed is not None:
                gradient = passed.mul_(hidden[number] > 0)
