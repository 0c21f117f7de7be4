"""HeteroFL and FjORD: what a narrow model is, against networks of torch that are really smaller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Descending, fit_clients
from helpers.written import all_told, assert_as_in
from torch import Tensor, nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning import parts


class Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Module(L.LightningModule):
    """A classifier by a network."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)


def images(share: float) -> Module:
    """A network with a sigmoid, whose value at 0 is not 0, and with all that is not a plain matrix."""
    channels, units = int(4 * share), int(6 * share)
    return Module(
        nn.Conv2d(1, 1, 1).requires_grad_(False),
        nn.BatchNorm2d(1),
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.Sigmoid(),
        nn.Conv2d(channels, channels, 3, groups=channels, bias=False),
        nn.GroupNorm(int(2 * share), channels),
        nn.Conv2d(channels, units, 1),
        nn.Flatten(),
        nn.Linear(9 * units, units),
        nn.Sigmoid(),
        nn.Linear(units, 3),
    )


def texts(share: float) -> Module:
    return Module(nn.Embedding(7, int(4 * share)), Mean(), nn.Linear(int(4 * share), 3), nn.LogSoftmax(1))


def make_clients(is_text: bool) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for size in (5, 4):
        x = torch.randn(size, 1, 5, 5, generator=generator, dtype=torch.float64)
        if is_text:
            x = torch.randint(0, 7, (size, 3), generator=generator)
        clients.append((x, torch.randint(0, 3, (size,), generator=generator)))
    return clients


def cut_to(state: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the leading entries of tensors, in the shapes of smaller ones."""
    return {name: tensor[tuple(slice(n) for n in like[name].shape)] for name, tensor in state.items()}


def trained(module: Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Train a network as plain torch does, by three steps, and return its tensors."""
    optimizer = module.configure_optimizers()
    for _ in range(3):
        optimizer.zero_grad()
        module.training_step((x, y), 0).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
        optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("make", [images, texts])
def test_a_narrow_model_trains_as_a_network_that_is_smaller(make: Callable[[float], Module]) -> None:
    torch.manual_seed(1)
    module = make(1.0)
    clients = make_clients(is_text=make is texts)
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for _ in range(2):
        models = []
        for share, (x, y) in zip((1.0, 0.5), clients, strict=True):
            own = make(share)
            own.load_state_dict(cut_to(expected, own.state_dict()))
            models.append(trained(own, x, y))
        for name, tensor in expected.items():
            mean = models[0][name].clone()
            # the second client has the leading entries alone
            both = cut_to({name: mean}, models[1])[name]
            both.copy_((both.double() + models[1][name].double()) / 2)
            tensor.copy_(mean)
    algorithm = fl.HeteroFL([1.0, 0.5], 1.0, local_epochs=3)
    fit_clients(algorithm, module, clients, 2, gradient_clip_val=0.3)
    for name, tensor in module.state_dict().items():
        assert torch.allclose(tensor.double(), expected[name].double(), rtol=1e-12, atol=1e-12), name


def test_a_value_that_nobody_holds_stays_and_does_not_travel() -> None:
    module = Module(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    clients = [(torch.ones(2, 2).double(), torch.zeros(2, dtype=torch.long))] * 3
    # the first client never reports
    options = {"participation": parts.Participation(available=lambda t: [0, 1], dropout=1 - 1e-12)}
    algorithm = fl.HeteroFL([1.0, 0.25, 0.5], 1.0, **options)
    fit_clients(algorithm, module, clients, 1)
    # 17 values for the first client; one hidden unit with two inputs, a bias and an output, and the output's bias
    assert algorithm.algorithm.traffic.values_down == 17 + 5
    assert algorithm.algorithm.traffic.values_up == 0
    algorithm = fl.HeteroFL([0.25, 0.5], 1.0)
    fit_clients(algorithm, module, clients, 1)
    assert algorithm.algorithm.traffic.values_down == algorithm.algorithm.traffic.values_up == 5 + 9 + 5
    for name, tensor in module.state_dict().items():
        kept = tensor[:, 2:] if name == "layers.2.weight" else tensor[2:]
        at_first = before[name][:, 2:] if name == "layers.2.weight" else before[name][2:]
        assert torch.equal(kept, at_first)


def test_widths_that_are_drawn_count_as_if_they_were_given() -> None:
    clients = make_clients(is_text=False)
    drawn = fl.HeteroFL([0.5, 1.0], 1.0, drawn=True, seed=3)
    torch.manual_seed(0)
    fit_clients(drawn, module := images(1.0), clients, 1)
    held = drawn.algorithm.objective.partial
    widths = [held.level(parts.Task(client, client, 0)) for client in range(2)]
    assert widths == [0.5, 1.0]
    torch.manual_seed(0)
    fit_clients(fl.HeteroFL(widths, 1.0, seed=3), given := images(1.0), clients, 1)
    assert all(torch.equal(tensor, given.state_dict()[name]) for name, tensor in module.state_dict().items())
    later = {held.level(parts.Task(0, 0, 0, round=number)) for number in range(8)}
    assert later == {0.5, 1.0}
    assert held.model_of(0, whole := torch.ones(3)) is whole  # a client's width is another one in each round
    assert all(make([0.5]).algorithm.objective.uses_gradients_alone for make in (fl.HeteroFL, fl.FjORD))


def tied() -> list[nn.Module]:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.bias = first.weight
    return [nn.Linear(25, 4), first, second, nn.Linear(4, 3)]


class Shrinks(torch.optim.SGD):
    """Moves values whose gradients are 0."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.data += 1e-3
        return loss


class Moved(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return Shrinks(self.parameters(), lr=0.1)


#: Layers of which it is not known what a narrow model holds.
LAYERS: list[list[nn.Module]] = [
    [nn.Linear(25, 4), nn.LayerNorm(4), nn.Linear(4, 3)],
    [nn.Linear(25, 4), nn.Linear(4, 6), nn.GroupNorm(3, 6, affine=False), nn.Linear(6, 3)],
    [nn.Linear(25, 4), nn.Linear(8, 3)],
    [nn.Linear(25, 4), nn.Linear(4, 8), nn.Linear(4, 3)],
    [nn.Linear(25, 4), nn.LSTM(4, 4), nn.Linear(4, 3)],
    [nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Linear(4, 3)],
    [nn.Linear(25, 4), nn.BatchNorm1d(8), nn.Linear(4, 3)],
    [nn.Linear(25, 4), nn.Linear(4, 3), nn.BatchNorm1d(4)],
    [nn.Linear(25, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)],
    [nn.Linear(25, 3)],
    tied(),
]
#: Algorithms, and modules that they cannot train.
COMBINATIONS: list[tuple[fl.AggregationCallback, Callable[[], L.LightningModule]]] = [
    *((fl.HeteroFL([1.0, 0.5], 1.0), partial(Module, *layers)) for layers in LAYERS),
    (fl.HeteroFL([1.0, 0.5, 0.5]), partial(images, 1.0)),
    (fl.HeteroFL([0.5], hidden={"b": 1}), partial(images, 1.0)),
    (fl.HeteroFL([0.5], hidden={"layers.9.bias": 1}), partial(images, 1.0)),
    (fl.HeteroFL([0.5], whole="v"), partial(images, 1.0)),
    (fl.HeteroFL([0.5], inputs="v"), partial(texts, 1.0)),
    (fl.FjORD([1.0, 0.5]), partial(images, 1.0)),
    (fl.HeteroFL([0.5], 1.0), partial(Moved, nn.Flatten(), nn.Linear(25, 4), nn.Linear(4, 3))),
]


def test_what_narrow_models_cannot_have(tmp_path: Path) -> None:
    fits = [
        lambda folder, algorithm=algorithm, make=make: fit_clients(algorithm, make(), make_clients(False))
        for algorithm, make in COMBINATIONS
    ]
    assert_as_in(Path(__file__).with_suffix(".txt"), all_told(fits, tmp_path), tmp_path)


class TwoHeads(Descending):
    """A layer, two heads, and tensors of its own."""

    lr = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4).double()
        self.first = nn.Linear(4, 2).double()
        self.second = nn.Linear(4, 2).double()
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.centre = nn.Parameter(torch.zeros(4, dtype=torch.float64))
        self.gain = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.loss = nn.NLLLoss(torch.ones(2))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.gain * self.body(batch[0]) + self.centre
        return ((self.first(hidden) + self.second(hidden)) * self.scale - batch[1]).square().sum()


@pytest.mark.parametrize("method", [fl.HeteroFL, fl.FjORD])
def test_a_user_names_the_layers_of_inputs_and_outputs_and_what_stays_whole(method: Any) -> None:
    module = TwoHeads()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    clients = [(torch.randn(5, 3).double(), torch.randn(5, 2).double())]
    names: dict[str, Any] = {"inputs": "body.*", "outputs": ["first.weight", "second.*"]}
    # FjORD has no other hidden tensors, and of a whole one the units that are narrow models' move alone
    heterofl = {"whole": "scale", "hidden": {"centre": 0, "gain": 0}}
    names |= heterofl if method is fl.HeteroFL else {"whole": ["scale", "centre", "gain"]}
    with pytest.raises(ValueError, match=r"'scale' becomes smaller, of 'the module' \(a class of a user's\)"):
        fit_clients(method([0.5], 1.0, **{**names, "whole": None}), module, clients)
    fit_clients(callback := method([0.5], 1.0, **names), module, clients)
    # The body has 8 values of two units, each head 6, and the scale 2; the two others are hidden, or whole.
    assert callback.algorithm.traffic.values_up == 8 + 2 * 6 + 2 + 2 * (2 if method is fl.HeteroFL else 4)
    moved = {name: (tensor != before[name]) for name, tensor in module.state_dict().items()}
    units = torch.tensor([True, True, False, False])
    assert torch.equal(moved["body.weight"], units.unsqueeze(1).expand(4, 3))
    for name in ("body.bias", "centre", "gain"):
        assert torch.equal(moved[name], units)
    for head in ("first", "second"):
        assert torch.equal(moved[f"{head}.weight"], units.expand(2, 4))
        assert moved[f"{head}.bias"].all()
    assert moved["scale"].all()
