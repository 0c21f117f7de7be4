"""A parameter is trained if an optimizer holds it; what else training changes is state, and is averaged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import clients_of
from helpers.toys import fit_clients
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from fl_lightning import (
    IFCA,
    AggregationCallback,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    Federated,
    FedPer,
    FedSAM,
    Scaffold,
    parts,
)
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.diagnostics import Communication
from fl_lightning.testing.fits import Break, distance

Make = Callable[[], AggregationCallback]


class HeadOnly(L.LightningModule):
    """A body and a head, of which the optimizer holds the head alone."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Linear(4, 6).requires_grad_(not frozen)
            self.head = nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.body(batch[0]))), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.head.parameters(), lr=0.2)


def exchanging(exchange: parts.Exchange) -> FedAvg:
    return FedAvg(1.0, weighting="uniform", exchange=exchange)


ALGORITHMS: dict[str, Make] = {
    "FedAvg": lambda: FedAvg(1.0),
    "privacy": lambda: exchanging(parts.DifferentialPrivacy(clip=0.1, noise_multiplier=1.0, delta=1e-3)),
    "local privacy": lambda: exchanging(parts.LocalDifferentialPrivacy(clip=0.1, noise_multiplier=0.5, delta=1e-3)),
    "signs": lambda: exchanging(parts.SignSGD()),
    "attack": lambda: exchanging(parts.GaussianAttack(0.4)),
    "clipping": lambda: exchanging(parts.Clip(0.05)),
    "TopK": lambda: exchanging(parts.TopK(0.2)),
    "TopK down": lambda: exchanging(parts.TopK(0.2, link="down")),
    "weight decay of the server": lambda: Federated(
        clients_per_round=1.0, server=parts.TorchServer(torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    ),
    "FedSAM": lambda: FedSAM(0.5, clients_per_round=1.0),
    "SCAFFOLD": lambda: Scaffold(1.0),
    "IFCA": lambda: IFCA(2, clients_per_round=1.0),
    "FedPer": lambda: FedPer("head.bias", clients_per_round=1.0),
    "a personal body": lambda: exchanging(parts.PersonalParameters("body")),
}


@pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_what_no_optimizer_holds_is_as_if_it_were_frozen(make: Make) -> None:
    found: list[tuple[dict[str, Tensor], dict[str, float]]] = []
    for frozen in (True, False):
        communication = Communication()
        fit_clients(make(), module := HeadOnly(frozen=frozen), clients_of(8, 8, 8), 2, communication, batch_size=4)
        found.append((module.state_dict(), communication.values))
    (expected, sent), (state, values) = found
    assert distance(state, expected) == 0.0
    assert torch.equal(state["body.weight"], HeadOnly().body.weight)
    assert values == sent


def test_a_stack_trains_the_head_alone() -> None:
    fit_clients(FedAvg(1.0, executor="sequential"), expected := HeadOnly(), clients_of(8, 8), 2, batch_size=4)
    callback = FedAvg(1.0, executor="vectorized")
    trainer = fit_clients(callback, module := HeadOnly(), clients_of(8, 8), 2, batch_size=4)
    assert trainer.fit_loop.executor.describe().startswith("in stacks")
    assert distance(module.state_dict(), expected.state_dict()) < 1e-6
    assert torch.equal(module.body.weight, expected.body.weight)


def follow_by_hand(module: Student) -> None:
    module.teacher.mul_(0.5).add_(module.w, alpha=0.5)


def follow_by_assignment(module: Student) -> None:
    module.teacher = nn.Parameter(0.5 * module.teacher + 0.5 * module.w)


class Student(L.LightningModule):
    """A weight, and a teacher that moves half the way to it before each step and that no optimizer holds."""

    def __init__(self, follow: Callable[[Student], None] = follow_by_hand) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.teacher = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.follow = follow

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.follow(self)
        return 0.5 * (self.w - batch[0] - self.teacher.detach()).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.w], lr=1.0)


#: One sample and one step each; with learning rate 1 it takes a client to the sample plus the teacher.
CLIENTS = [(torch.tensor([2.0]).double(),), (torch.tensor([6.0]).double(),)]


# FedAvg: the server goes to 4, 6, 8 (the samples' mean plus the teacher), a teacher to 0, (0 + 4) / 2, (2 + 6) / 2.
# FedAvgM with momentum 0.5: round 1: w = 4, v = 4. Round 2: the teachers go to 2, the mean is 6, v = 0.5 x 4 + 2 = 4,
# w = 8. Round 3: the teachers go to (2 + 8) / 2 = 5, the mean is 9, v = 0.5 x 4 + 1 = 3, w = 11.
@pytest.mark.parametrize("follow", [follow_by_hand, follow_by_assignment])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: FedAvg(1.0, executor="sequential"), (8.0, 4.0)),
        (lambda: FedAvg(1.0, executor="vectorized"), (8.0, 4.0)),
        (lambda: FedAvg(1.0, buffers="local"), (8.0, 4.0)),
        (lambda: FedAvgM(0.5, clients_per_round=1.0), (11.0, 5.0)),
    ],
    ids=["sequential", "vectorized", "local", "momentum"],
)
def test_a_teacher_with_gradients_is_averaged(make: Make, expected: Any, follow: Any) -> None:
    fit_clients(make(), module := Student(follow), CLIENTS, 3)
    assert (float(module.w), float(module.teacher)) == expected
    assert module.teacher.requires_grad


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
def test_the_servers_averaged_copy_is_the_mean_of_the_clients(make: Make) -> None:
    class Ends(Callback):
        means: list[float]

        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.means = []

        def on_client_end(self, trainer: L.Trainer, pl_module: Any, result: Any) -> None:
            self.means.append(float(pl_module.average.module.weight))

    fit_clients(make(), module := WithCopy(), CLIENTS, 2, ends := Ends())
    assert float(module.average.module.weight) == pytest.approx(sum(ends.means) / 2, abs=1e-12)
    assert float(module.average.module.weight) != float(module.layer.weight)


def test_a_large_codebook_travels_and_is_averaged() -> None:
    class Coded(Student):
        def __init__(self) -> None:
            super().__init__(lambda module: module.codebook.add_(1.0))
            self.codebook = nn.Parameter(torch.zeros(20_000))

    fit_clients(FedAvg(1.0), module := Coded(), CLIENTS, 2)
    assert torch.equal(module.codebook, torch.full((20_000,), 2.0))


def test_neighbours_in_one_memory_are_all_averaged() -> None:
    class Flat(Student):
        def __init__(self) -> None:
            super().__init__(lambda module: module.right.add_(module.w))
            memory = torch.zeros(4, dtype=torch.float64)
            self.left = nn.Parameter(memory[:2])
            self.right = nn.Parameter(memory[2:])

    fit_clients(FedAvg(1.0), module := Flat(), CLIENTS, 2)
    assert module.right.tolist() == [4.0, 4.0]
    assert module.left.tolist() == [0.0, 0.0]


# ---- which parameters are trained ----


def names_of(*optimized: str, frozen: str = "") -> list[str]:
    """Return what is trained of a body and a head, where each of some optimizers holds one of them."""
    module = HeadOnly()
    optimizers = [torch.optim.SGD(module.get_submodule(name).parameters(), lr=0.1) for name in optimized]
    for parameter in module.get_submodule(frozen).parameters() if frozen else ():
        parameter.requires_grad_(False)
    return list(StateVector(module, optimizers).names)


def test_what_any_optimizer_holds_is_trained_in_the_modules_order() -> None:
    body = ["body.weight", "body.bias"]
    head = ["head.weight", "head.bias"]
    assert names_of("head") == head
    assert names_of("head", "body") == body + head
    assert names_of("head", "body", frozen="body") == head
    assert names_of() == body + head  # without an optimizer everything with a gradient
    with pytest.raises(ValueError, match="nothing to train"):
        names_of("head", frozen="head")


def test_a_module_that_steps_by_itself_trains_all_that_has_a_gradient() -> None:
    class ByHand(Student):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                self.w.copy_(batch[0].mean())

        def configure_optimizers(self) -> None:
            return None

    trainer = fit_clients(FedAvg(1.0), module := ByHand(), CLIENTS)
    assert trainer.fit_loop.training.vector.names == ("w", "teacher")
    assert float(module.w) == 4.0


@pytest.mark.parametrize("change", ["added", "removed", "frozen"])
def test_another_choice_of_trained_parameters_in_mid_fit_is_an_error(change: str) -> None:
    class Changes(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            if change == "added":
                trainer.optimizers[0].add_param_group({"params": [pl_module.body.bias]})
            elif change == "removed":
                trainer.optimizers[0].param_groups[0]["params"].pop()
            else:
                pl_module.head.bias.requires_grad_(False)

    name = "body.bias" if change == "added" else "head.bias"
    with pytest.raises(RuntimeError, match=f"changed during the fit: {name}"):
        fit_clients(FedAvg(1.0), HeadOnly(), clients_of(8, 8), 2, Changes())


def test_freezing_what_is_not_trained_changes_nothing() -> None:
    class Freezes(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            pl_module.body.requires_grad_(False)

    fit_clients(FedAvg(1.0), expected := HeadOnly(), clients_of(8, 8), 2)
    fit_clients(FedAvg(1.0), module := HeadOnly(), clients_of(8, 8), 2, Freezes())
    assert distance(module.state_dict(), expected.state_dict()) == 0.0


# ---- checkpoints ----


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
        fit_clients(copy.deepcopy(callback), kind(), CLIENTS, 3, Break(2, tmp_path / "broken.ckpt"))
    fit_clients(callback, module := kind(), CLIENTS, 3, ckpt_path=tmp_path / "broken.ckpt")
    assert (float(module.w), float(module.teacher)) == (11.0, 5.0)


def test_a_checkpoint_with_other_trained_parameters_is_refused(tmp_path: Any) -> None:
    class Whole(HeadOnly):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    trainer = fit_clients(FedAvg(1.0), HeadOnly(), clients_of(8, 8))
    trainer.save_checkpoint(tmp_path / "head.ckpt")
    with pytest.raises(ValueError, match=r"trained|parameter group"):
        fit_clients(FedAvg(1.0), Whole(), clients_of(8, 8), 2, ckpt_path=tmp_path / "head.ckpt")
