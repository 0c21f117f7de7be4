"""The flat vector of a module's federated state."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import Classifier, clients_of, train_federatedly
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.clients.state_vector import StateVector


def test_vector_holds_parameters_and_then_buffers_and_frozen_tensors() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.BatchNorm1d(1))
    module[2].requires_grad_(False)
    module[3].eval().requires_grad_(False)
    state = StateVector(module)
    assert state.num_parameters == 2 * 3 + 3 + 3 + 3
    frozen = (3 + 1) + (1 + 1) + (1 + 1 + 1)  # a layer, a normalisation's weights and its buffers
    assert state.size == state.num_parameters + 3 + 3 + 1 + frozen
    vector = torch.arange(state.size, dtype=torch.float32) + 0.25
    state.write(vector)
    assert module[0].weight.flatten().tolist() == [0.25, 1.25, 2.25, 3.25, 4.25, 5.25]
    assert module[1].running_var.tolist() == [18.25, 19.25, 20.25]
    assert module[1].num_batches_tracked.item() == 21
    assert torch.equal(state.read()[:21], vector[:21])


def test_vector_refuses_what_cannot_be_averaged() -> None:
    with pytest.raises(ValueError, match="requires_grad"):
        StateVector(nn.Linear(2, 2).requires_grad_(False))
    module = nn.Module()
    module.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="'w' is complex"):
        StateVector(module)


def test_vector_notices_layers_that_were_frozen_meanwhile() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = StateVector(module)
    state.check_unchanged()
    module[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="Sequential"):
        state.check_unchanged()


def test_a_parameter_that_was_replaced_is_named() -> None:
    class Replaces(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            pl_module.layers[2].bias = nn.Parameter(torch.zeros(3))

    with pytest.raises(RuntimeError, match=r"layers\.2\.bias"):
        train_federatedly(Classifier(), clients_of(8, 8), callbacks=[Replaces()], max_epochs=2)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_a_buffer_that_grows_is_named_and_put_back(executor: str) -> None:
    class Remembers(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.register_buffer("memory", torch.zeros(0, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            output = self.layer(batch[0])
            self.memory = torch.cat([self.memory, output.detach()])
            return output.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Remembers()
    data = TensorDataModule([(torch.ones(4, 2), torch.zeros(4))] * 3, batch_size=2)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor)])
    with pytest.raises(ValueError, match="memory"):
        trainer.fit(module, datamodule=data)
    assert module.memory.shape == (0, 1)


def test_vector_counts_tied_weights_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert StateVector(module).size == 9 + 3 + 3
