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
        samples = (self.work.per_round, self.work.batch_size)
        self.server = []
        # The memory of each layer's outputs, and of the gradients that it passes on.
        self.outputs = []
        self.passed = []
        for layer in make_network(name).children():
            if isinstance(layer, nn.Linear):
                self.server.append((layer.weight.detach().to(device), layer.bias.detach().to(device)))
                self.outputs.append(torch.empty(*samples, layer.out_features, device=device))
                self.passed.append(torch.empty(*samples, layer.in_features, device=device))

    def round(self, drawn: Sequence[int] = ()) -> float:
        """Train a round of some clients, or of drawn ones, and return its seconds."""
        begun = self._clock()
        if not drawn:
            drawn = self.draw()
        num_clients = self.work.per_round
        batch_size = self.work.batch_size
        drawn = sorted(drawn, key=self.num_batches, reverse=True)
        batches = [self.num_batches(client) for client in drawn]
        x, targets, weights = self._gather(drawn, batches[0] * batch_size)
        models = []
        for weight, bias in self.server:
            models.append((weight.repeat(num_clients, 1, 1), bias.repeat(num_clients, 1, 1)))
        for step in range(batches[0]):
            active = sum(number > step for number in batches)
            of_step = (slice(active), slice(step * batch_size, (step + 1) * batch_size))
            at_work = [(weight[:active], bias[:active]) for weight, bias in models]
            self._step(at_work, x[of_step], targets[of_step], weights[of_step])
        self.server = [(weight.mean(0), bias.mean(0)[0]) for weight, bias in models]
        return self._clock() - begun

    def _gather(self, drawn: list[int], most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets as negative weights of the right class, and samples' weights, in the epoch's order."""
        work = self.work
        num_clients = len(drawn)
        x = torch.empty(num_clients, most, *work.shape, device=self.device)
        y = torch.zeros(num_clients, most, 1, dtype=torch.int64, device=self.device)
        weights = torch.zeros(num_clients, most, 1, device=self.device)
        for row, client in enumerate(drawn):
            client_x, client_y = self.clients[client]
            size = len(client_y)
            order = torch.randperm(size, generator=self.generator).to(self.device)
            torch.index_select(client_x, 0, order, out=x[row, :size])
            x[row, size:] = 0
            torch.index_select(client_y, 0, order, out=y[row, :size, 0])
            weights[row, :size] = 1 / work.batch_size
            # A last batch of fewer samples is a mean over these.
            in_last_batch = size % work.batch_size
            if in_last_batch:
                weights[row, size - in_last_batch : size] = 1 / in_last_batch
        targets = torch.zeros(num_clients, most, work.classes, device=self.device)
        targets.scatter_(2, y, -weights)
        return x, targets, weights

    def _step(self, models: list[tuple[Tensor, Tensor]], x: Tensor, targets: Tensor, weights: Tensor) -> None:
        num_clients = len(x)
        last = len(models) - 1
        hidden = [x]
        for number, (weight, bias) in enumerate(models):
            memory = self.outputs[number][:num_clients]
            out = torch.baddbmm(bias, hidden[-1], weight.transpose(1, 2), out=memory)
            hidden.append(out if number == last else out.relu_())
        gradient = torch.addcmul(targets, torch.softmax(hidden[-1], 2), weights)
        for number in range(last, -1, -1):
            weight, bias = models[number]
            # The inputs need no gradient.
            if number > 0:
                passed = torch.bmm(gradient, weight, out=self.passed[number][:num_clients])
            weight.baddbmm_(gradient.transpose(1, 2), hidden[number], alpha=-self.work.lr)
            bias.add_(gradient.sum(1, keepdim=True), alpha=-self.work.lr)
            if number > 0:
                gradient = passed.mul_(hidden[number] > 0)
