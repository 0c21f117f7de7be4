"""Frozen tensors that training changes are federated state: they start from the server's and are averaged."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, Scaffold, TensorDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import PersonalParameters

#: Two clients of one sample and one step; with learning rate 1 it takes a client to the sample plus the teacher.
CLIENTS = [(torch.tensor([2.0]).double(),), (torch.tensor([6.0]).double(),)]


def in_place(module: Student) -> None:
    module.teacher.mul_(0.5).add_(module.w, alpha=0.5)


def by_data(module: Student) -> None:
    module.teacher.data.mul_(0.5).add_(module.w.data, alpha=0.5)


def by_assignment(module: Student) -> None:
    mean = 0.5 * module.teacher + 0.5 * module.w.detach()
    module.teacher = nn.Parameter(mean, requires_grad=False)


class Student(L.LightningModule):
    """A weight, and a frozen teacher that moves half the way to it before each step."""

    def __init__(self, follow: Any = in_place, frozen: int = 0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.teacher = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)
        self.backbone = nn.Parameter(torch.ones(frozen), requires_grad=False)
        self.follow = follow

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.follow(self)
        return 0.5 * (self.w - batch[0] - self.teacher).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.w], lr=1.0)


def fit(module: Any, callback: Any, clients: Any = CLIENTS, *others: Any, **options: Any) -> L.Trainer:
    trainer = quiet_trainer(**{"max_epochs": 3, "callbacks": [callback, *others], **options})
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=1))
    return trainer


# round 1: the teacher stays at 0, the clients go to 2 and 6, the mean is 4
# round 2: the teacher goes to 2, the clients go to 4 and 8, the mean is 6
# round 3: the teacher goes to (2 + 6) / 2 = 4, the clients go to 6 and 10, the mean is 8
@pytest.mark.parametrize("follow", [in_place, by_data, by_assignment])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_every_client_starts_with_the_servers_teacher(follow: Any, executor: Any) -> None:
    for clients in (CLIENTS, CLIENTS[::-1]):
        fit(module := Student(follow), FedAvg(1.0, executor=executor), clients)
        assert (float(module.w), float(module.teacher)) == (8.0, 4.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # the server's teacher stays at 0, so that a client's goes to 0, 4 / 2 and 6 / 2; its mean then is 7
        ({"buffers": "server"}, (7.0, 0.0)),
        ({"buffers": "local"}, (8.0, 4.0)),  # both clients' own teachers are alike
        ({"exchange": PersonalParameters("teacher")}, (8.0, 4.0)),
    ],
    ids=["server", "local", "personal"],
)
def test_what_holds_for_buffers_holds_for_a_teacher(options: Any, expected: Any) -> None:
    fit(module := Student(), FedAvg(1.0, **options))
    assert (float(module.w), float(module.teacher)) == expected


def test_a_teacher_that_begins_later_and_in_a_hook() -> None:
    class Late(Student):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.current_epoch:
                with torch.no_grad():
                    in_place(self)

    # round 1: 2 and 6, the mean is 4; round 2: 2 and 6 again, then the teachers go to 1 and 3, the mean is 2;
    # round 3: 4 and 8, then the teachers go to (2 + 4) / 2 and (2 + 8) / 2
    fit(module := Late(lambda _: None), FedAvg(1.0))
    assert (float(module.w), float(module.teacher)) == (6.0, 4.0)


def test_a_loss_that_is_asked_for_leaves_the_teacher() -> None:
    class Asks(L.Callback):
        def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
            client.loss()
            for _ in client.gradients():
                pass

    fit(module := Student(), FedAvg(1.0), CLIENTS, Asks())
    assert (float(module.w), float(module.teacher)) == (8.0, 4.0)


def test_a_large_frozen_part_stays_out_and_must_be_constant() -> None:
    def writes_past_autograd(module: Student) -> None:
        module.backbone.data *= 2.0

    def writes_one_value(module: Student) -> None:
        with torch.no_grad():
            module.backbone[7] += 1.0

    def writes_what_is_there(module: Student) -> None:
        with torch.no_grad():
            module.backbone.copy_(module.backbone.clone())

    for harmless in (lambda _: None, writes_what_is_there):
        trainer = fit(Student(harmless, frozen=20_000), FedAvg(1.0))
        assert trainer.fit_loop.training.vector.layout.size == 1
    for writes in (writes_past_autograd, writes_one_value):
        for callback in (FedAvg(1.0), FedAvg(1.0, executor="sequential")):
            with pytest.raises(RuntimeError, match=r"frozen tensor 'backbone'.*Store it as a buffer"):
                fit(Student(writes, frozen=20_000), callback)


def test_frozen_tensors_of_other_types_change_no_arithmetic() -> None:
    class Other(Student):
        def __init__(self, follow: Any) -> None:
            super().__init__(follow)
            self.w = nn.Parameter(torch.zeros(()))
            self.tied = nn.Parameter(self.w.data, requires_grad=False)  # the weight's own memory

    trainer = fit(module := Other(lambda _: None), FedAvg(1.0), [(torch.ones(1),)] * 2)
    assert (trainer.fit_loop.training.vector.dtype, float(module.tied)) == (torch.float32, 1.0)
    with pytest.raises(RuntimeError, match="frozen tensor 'teacher'"):  # in double precision
        fit(Other(in_place), FedAvg(1.0), [(torch.ones(1),)] * 2)


class Mixed(L.LightningModule):
    """Tensors of many types: 8 + 2 x 4 bytes are trained; 2 x 2 + 8 bytes change with them, 6 + 1 do not."""

    def __init__(self) -> None:
        super().__init__()
        self.double_weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.weights = nn.Parameter(torch.zeros(2))
        self.teacher = nn.Parameter(torch.zeros(2, dtype=torch.float16), requires_grad=False)
        self.frozen = nn.Parameter(torch.zeros(3, dtype=torch.float16), requires_grad=False)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(True))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.teacher += 1
        self.steps += 1
        return (self.double_weight - batch[0]).square().sum() + (self.weights - batch[0]).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.double_weight, self.weights], lr=0.1)


@pytest.mark.parametrize(("callback", "vectors"), [(FedAvg(1.0), 1), (Scaffold(1.0), 2)])
def test_each_number_is_counted_in_its_own_type(callback: Any, vectors: int) -> None:
    fit(Mixed(), callback, CLIENTS, communication := Communication(), max_epochs=2)
    sent = 2 * 2 * (vectors * 16 + 12)  # by two clients in two rounds
    assert communication.values["fed/bytes_up"] == communication.values["fed/bytes_down"] == sent
