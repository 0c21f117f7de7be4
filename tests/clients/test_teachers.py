"""What training changes and no optimizer holds is federated state: it starts from the server's and is averaged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import fit_clients
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fl_lightning import AggregationCallback, FedAdam, FedAvg, FedAvgM, FedDyn, Federated, Scaffold, parts
from fl_lightning.diagnostics import Communication
from fl_lightning.testing.fits import Break

#: Two clients of one sample and one step; with learning rate 1 it takes a client to the sample plus the teacher.
CLIENTS = [(torch.tensor([2.0]).double(),), (torch.tensor([6.0]).double(),)]


def in_place(module: Student) -> None:
    module.teacher.mul_(0.5).add_(module.w, alpha=0.5)


def by_data(module: Student) -> None:
    module.teacher.data.mul_(0.5).add_(module.w.data, alpha=0.5)


def by_assignment(module: Student) -> None:
    mean = 0.5 * module.teacher + 0.5 * module.w
    module.teacher = nn.Parameter(mean, requires_grad=module.teacher.requires_grad)


class Student(L.LightningModule):
    """A weight, and a teacher, frozen or not, that moves half the way to it before each step."""

    def __init__(self, follow: Callable[[Any], Any] = in_place, frozen: bool = True, further: int = 0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.teacher = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=not frozen)
        self.further = nn.Parameter(torch.ones(further), requires_grad=not frozen)
        self.follow = follow

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.follow(self)
        return 0.5 * (self.w - batch[0] - self.teacher.detach()).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.w], lr=1.0)


def ends(callback: AggregationCallback, module: Any, *others: L.Callback, **options: Any) -> tuple[float, float]:
    """Return the weight and the teacher after three rounds."""
    fit_clients(callback, module, CLIENTS, 3, *others, **options)
    return float(module.w), float(module.teacher)


#: FedAvg: the server goes to 4, 6, 8 (the samples' mean plus the teacher), a teacher to 0, (0 + 4) / 2, (2 + 6) / 2.
#: FedAvgM with momentum 0.5: round 1: w = 4, v = 4. Round 2: the teachers go to 2, the mean is 6, v = 0.5 x 4 + 2 = 4,
#: w = 8. Round 3: the teachers go to (2 + 8) / 2 = 5, the mean is 9, v = 0.5 x 4 + 1 = 3, w = 11.
MAKES: dict[str, tuple[Callable[[], AggregationCallback], tuple[float, float]]] = {
    "sequential": (lambda: FedAvg(1.0, executor="sequential"), (8.0, 4.0)),
    "vectorized": (lambda: FedAvg(1.0, executor="vectorized"), (8.0, 4.0)),
    # the server's teacher stays at 0, so that a client's goes to 0, 4 / 2 and 6 / 2; its mean then is 7
    "server": (lambda: FedAvg(1.0, buffers="server"), (7.0, 0.0)),
    # both clients' own teachers are alike
    "local": (lambda: FedAvg(1.0, buffers="local"), (8.0, 4.0)),
    "personal": (lambda: FedAvg(1.0, exchange=parts.PersonalParameters("teacher")), (8.0, 4.0)),
    "momentum": (lambda: FedAvgM(0.5, clients_per_round=1.0), (11.0, 5.0)),
}


@pytest.mark.parametrize("follow", [in_place, by_data, by_assignment])
@pytest.mark.parametrize("name", MAKES)
def test_every_client_starts_with_the_servers_teacher(name: str, follow: Any) -> None:
    make, expected = MAKES[name]
    for frozen in (True, False):
        module = Student(follow, frozen)
        assert ends(make(), module) == expected, frozen
        assert module.teacher.requires_grad != frozen


def test_a_teacher_that_begins_later_and_in_a_hook() -> None:
    class Late(Student):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.current_epoch:
                with torch.no_grad():
                    in_place(self)

    # round 1: 2 and 6, the mean is 4; round 2: 2 and 6 again, then the teachers go to 1 and 3, the mean is 2;
    # round 3: 4 and 8, then the teachers go to (2 + 4) / 2 and (2 + 8) / 2
    assert ends(FedAvg(1.0), Late(lambda _: None)) == (6.0, 4.0)


class Ascending(Student):
    """Maximises minus its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.w], lr=1.0, maximize=True)


@pytest.mark.parametrize("kind", [Student, Ascending])
def test_a_loss_that_is_asked_for_leaves_the_teacher(kind: type[Student]) -> None:
    asked: dict[tuple[int, int], Any] = {}

    class Asks(L.Callback):
        def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
            [(gradients, samples)] = client.gradients()
            asked[client.task.seeds] = (client.loss(), {name: float(each) for name, each in gradients.items()}, samples)

    assert ends(FedAvg(1.0), kind(), Asks()) == (8.0, 4.0)
    # (w - sample - teacher)^2 / 2 with w = 0 and teacher = 0, then with w = 4 and the teacher at 2
    assert [asked[0, client] for client in (0, 1)] == [(2.0, {"w": -2.0}, 1), (18.0, {"w": -6.0}, 1)]
    assert [asked[1, client] for client in (0, 1)] == [(0.0, {"w": 0.0}, 1), (8.0, {"w": -4.0}, 1)]


def test_a_large_frozen_part_stays_out_and_must_be_constant() -> None:
    def writes_past_autograd(module: Student) -> None:
        module.further.data *= 2.0

    def writes_one_value(module: Student) -> None:
        module.further[7] += 1e-4

    def replaces_one_value(module: Student) -> None:
        first, _, others = module.further.detach().tensor_split([7, 8])
        module.further = nn.Parameter(torch.cat([first, torch.zeros(1), others]), requires_grad=False)

    def writes_what_is_there(module: Student) -> None:
        module.further.copy_(module.further.clone())

    for harmless in (lambda _: None, writes_what_is_there):
        trainer = fit_clients(FedAvg(1.0), Student(harmless, further=20_000), CLIENTS, 3)
        assert trainer.fit_loop.training.vector.layout.size == 1
    for writes in (writes_past_autograd, writes_one_value, replaces_one_value):
        for executor in ("auto", "sequential"):
            with pytest.raises(RuntimeError, match=r"frozen tensor 'further'.*Store it as a buffer"):
                ends(FedAvg(1.0, executor=executor), Student(writes, further=20_000))


def test_a_large_codebook_with_gradients_travels_and_is_averaged() -> None:
    ends(FedAvg(1.0), module := Student(lambda module: module.further.add_(1.0), frozen=False, further=20_000))
    assert torch.equal(module.further, torch.full((20_000,), 4.0))


def test_neighbours_in_one_memory_are_all_averaged() -> None:
    class Flat(Student):
        def __init__(self) -> None:
            super().__init__(lambda module: [part.add_(module.w) for part in module.parts()], frozen=False)
            memory = torch.zeros(6, dtype=torch.float64)
            self.further = nn.Parameter(memory[2:4])
            self.left = nn.Parameter(memory[4:])
            self.right = nn.Parameter(memory[:2])

        def parts(self) -> list[Tensor]:
            return [self.further, self.left, self.right]

    ends(FedAvg(1.0), module := Flat())
    # The weight is 4 after each round, which counts from the second one on.
    assert [part.tolist() for part in module.parts()] == [[8.0, 8.0]] * 3


def test_frozen_tensors_of_other_types_change_no_arithmetic() -> None:
    class Other(Student):
        def __init__(self, follow: Any) -> None:
            super().__init__(follow)
            self.w = nn.Parameter(torch.zeros(()))
            self.tied = nn.Parameter(self.w.data, requires_grad=False)  # the weight's own memory

    ones = [(torch.ones(1),)] * 2
    trainer = fit_clients(FedAvg(1.0), module := Other(lambda _: None), ones)
    assert (trainer.fit_loop.training.vector.dtype, float(module.tied)) == (torch.float32, 1.0)
    with pytest.raises(RuntimeError, match="frozen tensor 'teacher'"):  # in double precision
        fit_clients(FedAvg(1.0), module := Other(in_place), ones, 2)
    assert float(module.teacher) == 0.0  # it is put back


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
    fit_clients(callback, Mixed(), CLIENTS, 2, communication := Communication())
    sent = 2 * 2 * (vectors * 16 + 12)  # by two clients in two rounds
    assert communication.values["fed/bytes_up"] == communication.values["fed/bytes_down"] == sent


class WithCopy(L.LightningModule):
    """A linear model with an average of its own weights, which is updated after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        self.layer.weight.data.zero_()
        self.average = AveragedModel(self.layer)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return 0.5 * (self.layer.weight - batch[0]).square().mean()

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.update_parameters(self.layer)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layer.parameters(), lr=1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAdam(clients_per_round=1.0),
        lambda: FedAvgM(clients_per_round=1.0),
        lambda: FedDyn(0.1, clients_per_round=1.0),
        lambda: Federated(clients_per_round=1.0, server=parts.Mixing(0.1)),
    ],
    ids=["FedAdam", "FedAvgM", "FedDyn", "Mixing"],
)
def test_the_servers_averaged_copy_is_the_mean_of_the_clients(make: Any) -> None:
    class Ends(L.Callback):
        means: list[float]

        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.means = []

        def on_client_end(self, trainer: L.Trainer, pl_module: Any, result: Any) -> None:
            self.means.append(float(pl_module.average.module.weight))

    fit_clients(make(), module := WithCopy(), CLIENTS, 2, seen := Ends())
    assert float(module.average.module.weight) == pytest.approx(sum(seen.means) / 2, abs=1e-12)
    assert float(module.average.module.weight) != float(module.layer.weight)


def test_a_module_that_steps_by_itself_trains_all_that_has_a_gradient() -> None:
    class ByHand(Student):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                self.w.copy_(batch[0].mean())

        def configure_optimizers(self) -> None:
            return None

    trainer = fit_clients(FedAvg(1.0), module := ByHand(frozen=False), CLIENTS)
    assert trainer.fit_loop.training.vector.names == ("w", "teacher", "further")
    assert float(module.w) == 4.0


class Unsaved(Student):
    """Leaves its teacher out of checkpoints."""

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if name != "teacher"}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict(state_dict, strict=False, assign=assign)


@pytest.mark.parametrize("kind", [Student, Unsaved])
def test_a_resumed_fit_goes_on_with_the_teacher(kind: type[Student], tmp_path: Any) -> None:
    callback = FedAvgM(0.5, clients_per_round=1.0)
    with pytest.raises(ArithmeticError):
        ends(copy.deepcopy(callback), kind(frozen=False), Break(2, tmp_path / "broken.ckpt"))
    assert ends(callback, kind(frozen=False), ckpt_path=tmp_path / "broken.ckpt") == (11.0, 5.0)
