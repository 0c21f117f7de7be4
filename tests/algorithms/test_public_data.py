"""Distillation on public data beside plain loops of torch; ``contracts/test_setups.py`` has it in every set-up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.toys import Descending, fit_clients
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl


class Classifier(Descending):
    """A linear model behind dropout, whose logits are of sequences of one token."""

    lr = 0.3

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3).double())
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[:, None]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers[1](batch[0]), batch[1])


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CLIENTS = [(made(n, 4, seed=n), torch.arange(n) % 3) for n in (5, 3, 4)]
PUBLIC = made(7, 4, seed=9)


def linear(state: dict[str, Tensor], x: Tensor) -> Tensor:
    return x @ state["weight"].T + state["bias"]


def trained(state: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Take one full-batch step."""
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    gradients = torch.autograd.grad(F.cross_entropy(linear(leaves, x), y), list(leaves.values()))
    return {name: state[name] - Classifier.lr * each for name, each in zip(leaves, gradients, strict=True)}


@pytest.mark.parametrize("labelled", [False, True])
def test_feddf_is_its_algorithm_with_adam_of_pytorch(labelled: bool) -> None:
    server = {name: torch.full(shape, 0.2, dtype=torch.float64) for name, shape in (("weight", (3, 4)), ("bias", (3,)))}
    for _ in range(3):
        clients = [trained(server, x, y) for x, y in CLIENTS]
        student = {
            name: sum(len(y) * client[name] for (_, y), client in zip(CLIENTS, clients, strict=True)) / 12
            for name in server
        }
        leaves = [value.requires_grad_() for value in student.values()]
        adam = torch.optim.Adam(leaves, lr=0.1)
        for step, x in enumerate([PUBLIC[:4], PUBLIC[4:], PUBLIC[:4]]):
            adam.param_groups[0]["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 3))
            teacher = sum(linear(client, x) for client in clients).div(3).softmax(1)
            adam.zero_grad()
            F.kl_div(linear(student, x).log_softmax(1), teacher, reduction="batchmean").backward()
            adam.step()
        server = {name: value.detach() for name, value in student.items()}
    dataset = TensorDataset(PUBLIC, torch.zeros(7)) if labelled else PUBLIC
    module = Classifier()
    callback = fl.FedDF(module, DataLoader(dataset, 4), 1.0, steps=3, lr=0.1)
    fit_clients(callback, module, CLIENTS, 3)
    assert (module.layers[1].weight - server["weight"]).abs().max() < 1e-13
    assert (module.layers[1].bias - server["bias"]).abs().max() < 1e-13


def test_one_client_s_model_has_nothing_to_learn_from_itself() -> None:
    ends = []
    participation = fl.Participation(available=lambda number: [number % 3])
    sgd = {"steps": 4, "lr": 1.0, "optimizer": torch.optim.SGD}
    for callback in (
        fl.FedDF(Classifier(), DataLoader(PUBLIC, 4), 1.0, participation=participation, **sgd),
        fl.FedAvg(1.0, participation=participation),
    ):
        fit_clients(callback, module := Classifier(), CLIENTS, 4)
        ends.append(module.layers[1].weight.detach())
    assert (ends[0] - ends[1]).abs().max() < 1e-14


def test_the_module_that_lends_its_forward_pass_stays_as_it_is_and_the_seed_decides_the_order_of_public_data() -> None:
    ends = []
    lent = Classifier()
    lent.layers[0].train(False)
    for seed in (1, 1, 2):
        public = DataLoader(PUBLIC, 2, shuffle=True)
        fit_clients(fl.FedDF(lent, public, 1.0, steps=2, lr=0.1, seed=seed), module := Classifier(), CLIENTS, 2)
        torch.rand(7)
        ends.append(module.layers[1].weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    assert [part.training for part in lent.layers] == [False, True]
    assert (lent.layers[1].weight == 0.2).all()


def test_fedmd_clients_digest_the_mean_of_their_scores_and_train_on() -> None:
    first = {name: torch.full(shape, 0.2, dtype=torch.float64) for name, shape in (("weight", (3, 4)), ("bias", (3,)))}
    own = [trained(first, x, y) for x, y in CLIENTS]
    for _ in range(2):
        wanted = [(x, sum(linear(model, x) for model in own) / 3) for x in (PUBLIC[:4], PUBLIC[4:])]
        for client, model in enumerate(own):
            leaves = {name: value.clone().requires_grad_() for name, value in model.items()}
            adam = torch.optim.Adam(leaves.values(), lr=0.05)
            for x, scores in wanted * 2:
                adam.zero_grad()
                (linear(leaves, x) - scores).abs().mean().backward()
                adam.step()
            own[client] = trained({name: leaf.detach() for name, leaf in leaves.items()}, *CLIENTS[client])
    # In the second round nobody is there.
    there = fl.Participation(available=lambda number: [0, 1, 2] if number != 1 else [])
    callback = fl.FedMD(Classifier(), DataLoader(PUBLIC, 4), 1.0, batches=2, digestions=2, lr=0.05, participation=there)
    trainer = fit_clients(callback, Classifier(), CLIENTS, 4)
    for client, model in enumerate(own):
        found = fl.client_model(trainer, client)
        assert (found["layers.1.weight"] - model["weight"]).abs().max() < 1e-13
    # nothing but 7 x 3 scores, each way, for three clients in three rounds
    traffic = callback.algorithm.traffic
    assert (traffic.models_down, traffic.models_up) == (0, 0)
    assert traffic.bits_down == traffic.bits_up == 64 * 7 * 3 * 3 * 3


def test_texts_name_the_module_by_its_class() -> None:
    text = repr(fl.FedMD(Classifier(), DataLoader(PUBLIC, 4)).algorithm.schedule)
    assert text.startswith("PublicConsensus(module=Classifier(...), loader=<DataLoader>, personal_parameters=Personal")
