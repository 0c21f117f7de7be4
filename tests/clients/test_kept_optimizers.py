"""With ``optimizer_state="kept"`` a client's optimizer and schedule go on where its last round left them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import fit_clients, quiet_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.parts.part import personal_model, walk

SIZES = (6, 10, 4)
CLIENTS = clients_of((6,), SIZES)
ROUNDS = 4
Make = Callable[[Iterable[nn.Parameter]], Any]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.03)


def with_schedule(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """Return an optimizer whose rate is halved after so many steps."""
    return [optimizer], [{"scheduler": StepLR(optimizer, steps, 0.5), "interval": "step"}]


def cycled(parameters: Iterable[nn.Parameter], steps: int = 12) -> Any:
    """Return an optimizer whose rate and momentum follow one cycle of so many steps."""
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return [optimizer], [{"scheduler": OneCycleLR(optimizer, 0.2, total_steps=steps), "interval": "step"}]


MAKES: dict[str, Make] = {
    "AdamW": adamw,
    "Adam with the largest square": lambda p: torch.optim.Adam(p, lr=0.03, amsgrad=True),
    "SGD with dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Adafactor": torch.optim.Adafactor,
    "a state of nothing": lambda p: Noting(p, held=None),
    "a schedule by step": lambda p: with_schedule(torch.optim.NAdam(p, lr=0.05), 3),
    "one cycle": cycled,
}


class Own(Module):
    """A linear model with an optimizer that the test gives."""

    def __init__(self, make: Make) -> None:
        super().__init__(linear())
        self.make = make

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())


def fit(
    make: Make, callback: fl.AggregationCallback, rounds: int = ROUNDS, *others: Any, **options: Any
) -> parts.Algorithm:
    """Return the algorithm after a fit."""
    fit_clients(callback, Own(make), CLIENTS, rounds, *others, batch_size=4, **options)
    return callback.algorithm


def own_models(algorithm: parts.Algorithm, clients: int = len(SIZES)) -> list[Tensor]:
    held = walk(*algorithm.parts.values())
    return [personal_model(held, client, algorithm.server.model) for client in range(clients)]


def alone(make: Make, client: int) -> Tensor:
    """Return what a plain loop makes of a client's samples in as many epochs as there are rounds."""
    module = Own(make)
    made = module.configure_optimizers()
    # what steps: an optimizer, and perhaps its schedule
    steppers = [made[0][0], made[1][0]["scheduler"]] if isinstance(made, tuple) else [made]
    x, y = CLIENTS[client]
    for _ in range(ROUNDS):
        for inputs, targets in zip(x.split(4), y.split(4), strict=True):
            module.zero_grad()
            module.training_step((inputs, targets), 0).backward()
            for each in steppers:
                each.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("name", MAKES)
def test_local_training_is_that_of_a_plain_loop(name: str) -> None:
    models = own_models(fit(MAKES[name], fl.Local(executor="sequential")))
    for client, model in enumerate(models):
        assert torch.equal(model, alone(MAKES[name], client))


def test_a_client_that_was_left_out_goes_on_as_it_was() -> None:
    def train(left_out: bool) -> list[Tensor]:
        """Train client 0 in rounds 0 and 2; in between it stays away, or returns infinite values."""

        class Breaks(Own):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                loss = super().training_step(batch, batch_idx)
                return loss * float("inf") if self.current_epoch == 1 else loss

        available = parts.Participation(available=lambda t: [1] if t == 1 else [0])
        algorithm = fl.Local(1, participation=parts.Participation() if left_out else available, executor="sequential")
        module = Breaks(adamw) if left_out else Own(adamw)
        fit_clients(algorithm, module, CLIENTS[:1] if left_out else CLIENTS[:2], 3, batch_size=4)
        return own_models(algorithm.algorithm, 1)

    assert torch.equal(*train(left_out=True), *train(left_out=False))


@pytest.mark.parametrize("name", ["AdamW", "one cycle"])
def test_it_is_kept_on_disk_and_through_a_checkpoint(name: str, tmp_path: Path) -> None:
    def end(rounds: int = ROUNDS, *others: Any, path: Path | None = None, **options: Any) -> Tensor:
        callback = fl.FedAvg(2, seed=1, **options)
        return fit(MAKES[name], callback, rounds, *others, ckpt_path=path).server.model

    whole = end(optimizer_state="kept", state_dir=tmp_path)
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    end(2, save, optimizer_state="kept", state_dir=tmp_path)
    assert torch.equal(end(optimizer_state="kept", path=tmp_path / "last.ckpt"), whole)
    assert not torch.equal(end(), whole)


def test_a_checkpoint_of_clients_without_a_schedule_by_step_is_an_error(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    fit(adamw, kept := fl.FedAvg(2, optimizer_state="kept"), 1, save)
    # AdamW holds three states of each of four parameters, of which one is a number; a schedule has 18 numbers more.
    with pytest.raises(ValueError, match="held, 16 numbers of a client, got 34"):
        fit(lambda p: with_schedule(adamw(p), 3), kept, 2, ckpt_path=tmp_path / "last.ckpt")


# 3 batches in each of 4 rounds; two of them make a step, and the third one makes another
@pytest.mark.parametrize(("accumulated", "steps"), [(1, 12), (2, 8)])
def test_one_cycle_shorter_than_a_client_s_steps_is_an_error_at_the_door(accumulated: int, steps: int) -> None:
    words = rf"up to {steps} in this fit, but OneCycleLR ends after {steps - 1}.*total_steps={steps}"
    with pytest.raises(ValueError, match=words):
        fit(lambda p: cycled(p, steps - 1), fl.Local(), accumulate_grad_batches=accumulated)
    fit(lambda p: cycled(p, steps), fl.Local(), accumulate_grad_batches=accumulated)


def test_schedules_of_two_intervals_are_an_error() -> None:
    def both(parameters: Iterable[nn.Parameter]) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        return [optimizer], [{"scheduler": StepLR(optimizer, 2), "interval": each} for each in ("step", "epoch")]

    with pytest.raises(ValueError, match="schedules of one interval"):
        fit(both, fl.Local(executor="sequential"))


class Counting(torch.optim.SGD):
    """Counts its steps in the options of its last parameters."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        first, *others = parameters
        super().__init__([{"params": [first]}, {"params": others}], lr=lr)

    def step(self, closure: Any = None) -> Any:
        self.param_groups[-1]["k"] = self.param_groups[-1].get("k", 0) + 1
        return super().step(closure)


class Noting(torch.optim.SGD):
    """Holds something of a parameter, or of what is none."""

    def __init__(self, parameters: Iterable[nn.Parameter], held: Any = 0.0, key: Any = None) -> None:
        super().__init__(parameters, lr=0.1)
        self.held, self.key = held, key

    def step(self, closure: Any = None) -> Any:
        self.state[self.key or self.param_groups[0]["params"][0]]["held"] = self.held
        return super().step(closure)


class Wrapping(torch.optim.SGD):
    """Holds another optimizer."""

    def __init__(self, parameters: Any) -> None:
        held = list(parameters)
        super().__init__(held, lr=0.1)
        self.inner = torch.optim.Adam(held)


class Later(torch.optim.SGD):
    """Holds one more state from the second step on."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            held = self.state[parameter]
            name = "more" if "first" in held else "first"
            held[name] = torch.zeros_like(parameter)
        return super().step(closure)


#: Holds one more number after each step.
Growing: Any = type("Growing", (StepLR,), {"state_dict": lambda self: {"past": [0.0] * self.last_epoch}})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: [[each := adamw(p)], [{"scheduler": Growing(each, 1), "interval": "step"}]], "the same numbers all"),
        (lambda p: Later(p, lr=0.1), r"Later must hold the same .*\['more'\] later\. Give `optimizer_state"),
        (torch.optim.LBFGS, "step by gradients alone, got LBFGS, .*missing .*closure.*Give `optimizer_state"),
        (lambda p: Counting(p, lr=0.1), "change nothing but their `state`, got Counting.*Give `optimizer_state"),
        (lambda p: Noting(p, held=3.0 + 1j), "got 'held' of Noting, complex.*Give `optimizer_state"),
        (lambda p: Noting(p, held=torch.zeros(2).long()), "got 'held' of Noting, Tensor"),
        (lambda p: Noting(p, key="all"), "states of single parameters, got Noting.*Give `optimizer_state"),
        (Wrapping, "wrap no others, got Wrapping"),
    ],
)
def test_an_optimizer_that_holds_more_than_vectors_is_an_error(make: Make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit(make, fl.FedAvg(1.0, optimizer_state="kept"))


def test_weight_decay_that_a_term_adds_is_not_kept() -> None:
    def decaying(parameters: Iterable[nn.Parameter]) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1, weight_decay=0.01)
        return [optimizer], [{"scheduler": StepLR(optimizer, 1, 1.0), "interval": "step"}]

    kept, fresh = (
        fit(decaying, fl.FedDyn(0.3, 1.0, penalty="weight_decay", optimizer_state=state)).server.model
        for state in ("kept", "fresh")
    )
    assert torch.equal(kept, fresh)


def test_stacks_say_why_they_are_none_and_plain_sgd_is_stacked() -> None:
    def told(make: Make) -> str:
        fit(make, callback := fl.FedAvg(1.0, optimizer_state="kept", executor="vectorized"))
        return callback._executor.describe()

    assert "what their optimizers hold" in told(adamw)
    assert told(lambda p: torch.optim.SGD(p, lr=0.1)) == "in stacks"


class TwoByHand(Module):
    """Steps its first layer by Adam with two rates and its last one by SGD, with schedules that it steps itself."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        first, _, last = self.layers
        groups = [{"params": [first.weight]}, {"params": [first.bias], "lr": 0.02}]
        adam = torch.optim.Adam(groups, lr=0.05, eps=1e-3)
        both = [adam, torch.optim.SGD(last.parameters(), 0.1, momentum=0.9)]
        return both, [StepLR(each, steps, 0.5) for each, steps in zip(both, (3, 4), strict=True)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        both = self.optimizers()
        for optimizer in both:
            optimizer.zero_grad()
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer, schedule in zip(both, self.lr_schedulers(), strict=True):
            optimizer.step()
            schedule.step()
        return loss


def test_several_optimizers_and_schedules_that_the_module_steps_itself_go_on() -> None:
    fit_clients(callback := fl.Local(executor="sequential"), TwoByHand(linear()), CLIENTS, ROUNDS, batch_size=4)
    for (x, y), model in zip(CLIENTS, own_models(callback.algorithm), strict=True):
        alone = TwoByHand(linear())
        both, schedules = alone.configure_optimizers()
        for _ in range(ROUNDS):
            for inputs, targets in zip(x.split(4), y.split(4), strict=True):
                alone.zero_grad()
                Module.training_step(alone, (inputs, targets), 0).backward()
                for each in (*both, *schedules):
                    each.step()
        assert torch.equal(model, nn.utils.parameters_to_vector(alone.parameters()).detach())


def test_weight_decay_that_a_term_adds_reaches_each_of_several_optimizers() -> None:
    ends: list[Tensor] = []
    for penalty in ("weight_decay", "gradient"):
        callback = fl.FedDyn(0.3, 1.0, penalty=penalty)  # type: ignore[arg-type]
        fit_clients(callback, TwoByHand(linear()), CLIENTS, 2, batch_size=4)
        ends.append(callback.algorithm.server.model)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_a_checkpoint_inside_of_a_round_has_the_rates_of_several_optimizers_at_its_start(tmp_path: Path) -> None:
    class Saving(TwoByHand):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.current_epoch == 2:
                self.trainer.save_checkpoint(tmp_path / "inside.ckpt")

    fit_clients(whole := fl.FedAvg(2, seed=1), Saving(linear()), CLIENTS, ROUNDS, batch_size=4)
    resumed, path = fl.FedAvg(2, seed=1), tmp_path / "inside.ckpt"
    fit_clients(resumed, TwoByHand(linear()), CLIENTS, ROUNDS, batch_size=4, ckpt_path=path)
    assert torch.equal(resumed.algorithm.server.model, whole.algorithm.server.model)


@pytest.mark.parametrize("name", ["AdamW", "one cycle"])
@pytest.mark.parametrize("scale", [None, 2.0**40])
def test_one_client_alone_is_what_lightning_trains_in_as_many_epochs(name: str, scale: float | None) -> None:
    def train(*callbacks: Any) -> Tensor:
        plugins = []
        if scale is not None:
            # Its first steps overflow, and are skipped.
            plugins = [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))]
        module = Own(MAKES[name]).float()
        data = fl.TensorDataModule([(x.float(), y)], batch_size=2, shuffle=False)
        trainer = quiet_trainer(max_epochs=ROUNDS, callbacks=[*callbacks], plugins=plugins)
        trainer.fit(module, datamodule=data)
        return nn.utils.parameters_to_vector(module.parameters()).detach()

    x, y = CLIENTS[0]
    assert torch.equal(train(fl.FedAvg(1.0, optimizer_state="kept")), train())
