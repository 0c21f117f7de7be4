"""Tensors that several layers share: they are personal, or frozen, for all of these layers or for none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import Descending, fit_clients
from torch import Tensor, nn
from torch.utils.data import DataLoader

import fl_lightning as fl

HEAD = ["head", "embedding"]
TIED = "` must name all or none of the layers that share a tensor: embedding.weight and head.weight are one, got "


class Tied(Descending):
    """``E^T tanh(M E x) + b``: the output layer has the weights of the embedding."""

    def __init__(self, is_tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Linear(4, 4, bias=False).double()
        self.middle = nn.Linear(4, 4, bias=False).double()
        self.head = nn.Linear(4, 4).double()
        if is_tied:
            self.head.weight = self.embedding.weight
        # one more name of a layer is none of another layer
        self.output = nn.Sequential(self.head)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embedding(x))))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


class Once(Tied):
    """The same, with one name for its output layer."""

    def __init__(self, is_tied: bool = True) -> None:
        super().__init__(is_tied)
        del self.output

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.embedding(x))))


def clients() -> list[Any]:
    """Return two clients of equal size; a batch is all that a client has."""
    generator = torch.Generator().manual_seed(5)
    make: dict[str, Any] = {"generator": generator}
    return [(torch.randn(6, 4, dtype=torch.float64, **make), torch.randint(4, (6,), **make)) for _ in range(2)]


def step(module: Tied, data: Any, trained: list[Tensor]) -> None:
    """Take one step of plain gradient descent on all samples."""
    gradients = torch.autograd.grad(module.training_step(data, 0), trained)
    with torch.no_grad():
        for tensor, gradient in zip(trained, gradients, strict=True):
            tensor -= Tied.lr * gradient


def by_hand(rounds: int, personal: bool, train: Callable[[Tied, Any], None]) -> list[Tied]:
    """Return the clients' models after rounds in which all but personal tensors become the clients' means."""
    local = [Tied() for _ in range(2)]
    shared = ["middle.weight"] if personal else ["middle.weight", "embedding.weight", "head.bias"]
    for _ in range(rounds):
        for module, data in zip(local, clients(), strict=True):
            train(module, data)
        for name in shared:
            held = [module.get_parameter(name).data for module in local]
            mean = torch.stack(held).mean(0)
            for tensor in held:
                tensor.copy_(mean)
    return local


def at_once(module: Tied, data: Any) -> None:
    step(module, data, [module.embedding.weight, module.middle.weight, module.head.bias])


def head_first(module: Tied, data: Any) -> None:
    step(module, data, [module.embedding.weight, module.head.bias])
    step(module, data, [module.middle.weight])


@pytest.mark.parametrize(
    ("make", "train"),
    [(fl.FedPer, at_once), (fl.LGFedAvg, at_once), (lambda p, **k: fl.FedRep(p, head_epochs=1, **k), head_first)],
)
@pytest.mark.parametrize("pattern", [HEAD, ["output.*", "embedding.weight"]])
def test_a_tied_head_is_personal_with_its_embedding(make: Any, train: Any, pattern: list[str]) -> None:
    callback, module = make(pattern, clients_per_round=1.0), Tied()
    fit_clients(callback, module, clients(), rounds=3, batch_size=6)
    for client, expected in enumerate(by_hand(3, True, train)):
        assert torch.allclose(module.middle.weight, expected.middle.weight, rtol=1e-12)
        kept = callback.algorithm.chain.members[1].of_client(client)
        assert kept.keys() == {"embedding.weight", "head.bias"}
        for name, tensor in kept.items():
            assert torch.allclose(tensor, expected.get_parameter(name), rtol=1e-12)


def test_a_tied_head_is_frozen_with_its_embedding() -> None:
    callback, module = fl.FedBABU(HEAD, 1.0, every=9), Tied()
    fit_clients(callback, module, clients(), rounds=3, batch_size=6)
    expected = by_hand(3, False, lambda module, data: step(module, data, [module.middle.weight]))[0]
    assert torch.allclose(module.middle.weight, expected.middle.weight, rtol=1e-12)
    assert torch.equal(module.embedding.weight, Tied().embedding.weight)


@pytest.mark.parametrize("make", [fl.FedPer, fl.LGFedAvg, fl.FedRep, fl.FedBABU, fl.FedRoD, fl.FedBN, fl.FedALA])
@pytest.mark.parametrize("pattern", ["head", "embedding", ["output"]])
def test_a_tied_layer_alone_is_refused(make: Any, pattern: Any) -> None:
    argument, left = "mixed" if make is fl.FedALA else "pattern", "head" if pattern == "embedding" else "embedding"
    with pytest.raises(ValueError, match=rf"^`{argument}{TIED}\[.*\], which leave out \['{left}.weight'\]"):
        fit_clients(make(pattern, 1.0), Tied(), clients(), batch_size=6)


def test_fed_rod_wants_an_output_layer_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"got embedding\.weight, which other layers use too"):
        fit_clients(fl.FedRoD(HEAD, 1.0), Tied(), clients(), batch_size=6)


def test_a_layer_with_two_names_has_either() -> None:
    kept = []
    for pattern in ("head.bias", "output.0.bias"):
        fit_clients(callback := fl.FedPer(pattern, 1.0), Tied(), clients(), rounds=2, batch_size=6)
        kept.append(callback.algorithm.chain.members[1].of_client(1))
    assert kept[0].keys() == kept[1].keys() == {"head.bias"}
    assert torch.equal(kept[0]["head.bias"], kept[1]["head.bias"])


@pytest.mark.parametrize(
    ("make", "is_tied"),
    [
        (lambda net: fl.FedNTD(1.0, 1.0, output_layer="output.0" if type(net) is Tied else "head"), True),
        (lambda module: fl.FedRoD("head", 1.0), False),
        (lambda module: fl.FedDF(module, DataLoader(clients()[0][0], 3), 1.0, steps=4, lr=0.1), True),
    ],
)
def test_a_layer_with_two_names_learns_from_other_models_as_one_with_one_name(make: Any, is_tied: bool) -> None:
    modules = Tied(is_tied), Once(is_tied)
    for module in modules:
        fit_clients(make(module), module, clients(), rounds=2, batch_size=6)
    assert torch.equal(modules[0].middle.weight, modules[1].middle.weight)
