"""The flat vector of a module's federated state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import stacked
from helpers.comparison import Classifier, clients_of, train_federatedly
from torch import Tensor, nn

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.clients.state_vector import StateVector, unshared
from fl_lightning.testing.fits import fit


def test_vector_holds_parameters_and_then_buffers_and_frozen_tensors() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.BatchNorm1d(1))
    module[2].requires_grad_(False)
    module[3].eval().requires_grad_(False)
    state = StateVector(module)
    assert state.layout.num_parameters == 2 * 3 + 3 + 3 + 3
    frozen = (3 + 1) + (1 + 1) + (1 + 1 + 1)  # a layer, a normalisation's weights and its buffers
    assert state.layout.size == state.layout.num_parameters + 3 + 3 + 1 + frozen
    vector = torch.arange(state.layout.size, dtype=torch.float32) + 0.25
    state.write(vector)
    assert module[0].weight.flatten().tolist() == [0.25, 1.25, 2.25, 3.25, 4.25, 5.25]
    assert module[1].running_var.tolist() == [18.25, 19.25, 20.25]
    assert module[1].num_batches_tracked.item() == 21
    assert torch.equal(state.read()[:21], vector[:21])
    # what others do with copies changes neither the module nor the vector
    others = {"text": "kept", "graph": torch.eye(2).to_sparse()}
    copies = state.with_values({**module.state_dict(), **others}, shifted := vector + 1)
    assert copies.pop("text") == "kept"
    assert torch.equal(copies.pop("graph").to_dense(), torch.eye(2))
    for name, copy in copies.items():
        assert torch.equal(copy, module.state_dict()[name] + 1), name
        copy.zero_()
    assert torch.equal(shifted, vector + 1)


@pytest.mark.parametrize(
    ("trained", "frozen", "travels"),
    [(2, 2**14, True), (2, 2**14 + 1, False), (10_000, 20_000, True), (10_000, 20_001, False)],
)
def test_frozen_tensors_travel_if_they_are_few(trained: int, frozen: int, travels: bool) -> None:
    module = nn.Module()
    module.v = nn.Parameter(torch.zeros(1))
    module.w = nn.Parameter(torch.zeros(trained - 1))
    module.frozen = nn.Parameter(torch.zeros(frozen), requires_grad=False)
    assert StateVector(module).layout.size == trained + frozen * travels


#: Of a buffer: its name, whether its owner is in training mode, the vector's type, and whether that has the buffer.
BUFFERS: dict[str, tuple[Tensor, str, bool, torch.dtype, bool]] = {
    "bytes": (torch.tensor([255], dtype=torch.uint8), "kept", True, torch.float32, True),
    "short": (torch.tensor([7], dtype=torch.int16), "kept", True, torch.float32, True),
    "double": (torch.tensor([0.5], dtype=torch.float64), "kept", True, torch.float64, True),
    "whole": (torch.tensor([7]), "kept", True, torch.float64, True),
    "counter": (torch.tensor([2**22 - 1]), "num_batches_tracked", True, torch.float32, True),
    "large counter": (torch.tensor([-(2**22)]), "num_batches_tracked", True, torch.float64, True),
    "complex": (torch.tensor([1j]), "kept", True, torch.float32, False),
    "frozen": (torch.tensor([2**22 - 1]), "kept", False, torch.float32, True),
    "large frozen": (torch.tensor([2**22]), "kept", False, torch.float32, False),
    "double frozen": (torch.tensor([0.5], dtype=torch.float64), "kept", False, torch.float32, False),
    "inferred frozen": (torch.inference_mode()(torch.zeros)(3), "kept", False, torch.float32, False),
    "expanded frozen": (torch.zeros(1).expand(1, 3), "kept", False, torch.float32, False),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_travels_if_the_vector_can_hold_it(name: str) -> None:
    buffer, key, in_training, dtype, travels = BUFFERS[name]
    module = nn.Sequential(nn.Linear(1, 1), nn.Module().train(in_training))
    module[1].register_buffer(key, buffer)
    state = StateVector(module)
    assert (state.dtype, state.layout.size) == (dtype, 2 + travels)


def test_on_another_device_the_whole_vector_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateVector(nn.Linear(1, 1))
    vector = state.read()
    monkeypatch.setattr(StateVector, "read", lambda self: vector.clone())
    state.device = torch.device("cuda")
    assert state.holds(vector)
    assert not state.holds(vector + 1.0)


def test_gradients_of_one_memory_are_taken_apart() -> None:
    one = torch.ones(2)
    first, nothing, second, wide = unshared([one, None, one, torch.ones(1).expand(2)])
    assert [gradient.add_(1).tolist() for gradient in (first, second, wide)] == [[2, 2]] * 3  # type: ignore[union-attr]
    assert nothing is None


def test_a_counter_that_single_precision_cannot_hold_stays_exact() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    module[1].num_batches_tracked.fill_(2**24 + 1)
    state = StateVector(module)
    vector = state.read()
    vector[-1] += 2
    state.write(vector)
    assert module[1].num_batches_tracked.item() == 2**24 + 3


@pytest.mark.parametrize("change", [torch.cat, lambda tensors: None], ids=["grows", "vanishes"])
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_a_buffer_that_changes_its_shape_is_named_and_put_back(executor: Any, change: Any) -> None:
    class Remembers(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("memory", torch.zeros(0, 4))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.memory = change([self.memory, batch[0]])
            return self.loss(batch)

    module = Remembers()
    with pytest.raises(ValueError, match="`memory` of Remembers"):
        train_federatedly(module, clients_of(4, 4, 4), batch_size=2, algorithm=FedAvg(1.0, executor=executor))
    assert module.memory.shape == (0, 4)


def test_vector_counts_tied_weights_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert StateVector(module).layout.size == 9 + 3 + 3


# ---- sparse buffers stay where they are, as complex ones do ----


class Graph(stacked.Module):
    """Mixes features by a matrix."""

    def __init__(self, layout: Callable[[Tensor], Tensor]) -> None:
        super().__init__(stacked.linear())
        self.register_buffer("adjacency", layout(torch.eye(6).double().roll(1, 0) + torch.eye(6)))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(((self.adjacency @ batch[0].T).T, batch[1]), batch_idx)


def fitted(layout: Callable[[Tensor], Tensor]) -> Graph:
    data = TensorDataModule(stacked.clients_of((6,)), batch_size=4)
    fit(FedAvg(1.0, executor="sequential", seed=1), module := Graph(layout), data, 2)
    return module


@pytest.mark.parametrize("layout", [Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc])
def test_a_sparse_matrix_trains_as_a_dense_one(layout: Callable[[Tensor], Tensor]) -> None:
    expected, module = fitted(lambda a: a), fitted(layout)
    torch.testing.assert_close(module.layers[0].weight, expected.layers[0].weight, atol=1e-12, rtol=0)
    assert torch.equal(module.adjacency.to_dense(), expected.adjacency)
