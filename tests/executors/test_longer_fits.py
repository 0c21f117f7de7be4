"""Stacks in fits that go on, clients longer than all before, and modules that are hard to look at."""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, Scaffold, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

SIZES = (8, 13, 6, 21, 10)


def fit(module: Module, executor: Any, sizes: tuple[int, ...] = SIZES, rounds: int = 3, **options: Any) -> Any:
    trainer = options.pop("trainer", {})
    callback = options.pop("callback", None) or FedAvg(1.0, seed=1, executor=executor, **options)
    fitter = quiet_trainer(max_epochs=rounds, callbacks=[callback], **trainer)
    fitter.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
    return fitter


def weights(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def assert_same(make: Any, *arguments: Any, **options: Any) -> None:
    """Compare a fit's weights under both executors."""
    modules = [make(), make()]
    for module, executor in zip(modules, ("sequential", "vectorized"), strict=True):
        fit(module, executor, *arguments, **options)
    assert torch.allclose(weights(modules[0]), weights(modules[1]), rtol=0, atol=1e-10)


class CountsLater(Module):
    """Counts its steps, which a stack would take once for all, when it is told to."""

    on = False
    until = 0

    def __init__(self) -> None:
        super().__init__(linear())
        self.seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen += int(self.on)
        return F.cross_entropy(self.layers(batch[0]), batch[1]) * (1 + 0.1 * self.seen)


class CountsInTheThirdRound(CountsLater):
    def on_train_epoch_start(self) -> None:
        self.on = self.current_epoch >= 2


class CountsAtTheSeventhBatch(CountsLater):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.on = batch_idx == 6
        return super().training_step(batch, batch_idx)


class SeesBatchNumbers(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1]) * (1 + 0.3 * (batch_idx % 3))


def test_a_resumed_fit_looks_for_changes_in_its_first_round(tmp_path: Path) -> None:
    whole, resumed = CountsInTheThirdRound(), CountsInTheThirdRound()
    fit(whole, "vectorized", rounds=4)
    begun = fit(CountsInTheThirdRound(), "vectorized", rounds=2)
    assert begun.fit_loop.executor.cause is None
    begun.save_checkpoint(tmp_path / "two.ckpt")
    fitter = quiet_trainer(max_epochs=4, callbacks=[FedAvg(1.0, seed=1, executor="vectorized")])
    data = TensorDataModule(clients_of((6,), SIZES), batch_size=4)
    fitter.fit(resumed, datamodule=data, ckpt_path=tmp_path / "two.ckpt", weights_only=False)
    assert "changes `self.seen`" in fitter.fit_loop.executor.cause
    assert torch.equal(weights(whole), weights(resumed))


class Normalised(Module):
    def __init__(self) -> None:
        super().__init__(linear())
        nn.utils.parametrizations.weight_norm(self.layers[0])


class Hooked(Module):
    def __init__(self) -> None:
        super().__init__(linear())
        self.handle = self.layers.register_forward_hook(_twice, with_kwargs=True)


def _twice(layer: nn.Module, arguments: Any, options: Any, output: Tensor) -> Tensor:
    return 2 * output


class OwnTables(Module):
    """Has a table whose name is like those of torch, and one of torch's whose entry was taken away."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.my_hooks_by_layer = OrderedDict(a=1)
        self.layers.register_forward_hook(_twice, with_kwargs=True)
        self.layers._forward_hooks.clear()


class Stamped(Module):
    starts = itertools.count()

    def __init__(self) -> None:
        super().__init__(linear())
        self.begun = next(self.starts)


class KeepsHistory(Module):
    def __init__(self) -> None:
        super().__init__(linear())
        self.history: list[int] = []

    def on_train_epoch_end(self) -> None:
        self.history = [*self.history, self.current_epoch]

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: Any) -> None:
        self.history = checkpoint["history"]


def resumed_after_two_rounds(
    make: Any, path: Path, executor: str = "vectorized", rounds: int = 3, sizes: tuple[int, ...] = SIZES
) -> Tensor:
    """Return the weights after some rounds, of which those after the second are another fit's."""
    module = make()
    fit(make(), executor, sizes, rounds=2).save_checkpoint(path)
    fitter = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, seed=1, executor=executor)])
    data = TensorDataModule(clients_of((6,), sizes), batch_size=4)
    fitter.fit(module, datamodule=data, ckpt_path=path, weights_only=False)
    return weights(module)


class MakesScale(Module):
    scale: Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.scale is None:
            self.scale = torch.tensor(0.5)
        return self.scale * F.cross_entropy(self.layers(batch[0]), batch[1])


class MakesNewScale(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = torch.tensor(0.5)
        return self.scale * F.cross_entropy(self.layers(batch[0]), batch[1])


class KeepsProperty(Module):
    @functools.cached_property
    def scale(self) -> Tensor:
        return torch.tensor(0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.scale * F.cross_entropy(self.layers(batch[0]), batch[1])


@pytest.mark.parametrize("make", [MakesScale, MakesNewScale, KeepsProperty])
def test_what_a_first_step_makes_is_made_again_in_a_resumed_fit(
    make: type[Module], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, resumed = make(linear()), make(linear())
    fit(whole, "sequential", 4 * (8, 6))
    begun = fit(make(linear()), "vectorized", 4 * (8, 6), rounds=1)
    begun.save_checkpoint(tmp_path / "one.ckpt")
    fitter = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, seed=1, executor="vectorized")])
    data = TensorDataModule(clients_of((6,), 4 * (8, 6)), batch_size=4)
    with caplog.at_level("INFO"):
        fitter.fit(resumed, datamodule=data, ckpt_path=tmp_path / "one.ckpt", weights_only=False)
    assert "tested again, because `self.scale` has changed since the last fit" in caplog.text
    assert fitter.fit_loop.executor.cause is None
    assert torch.allclose(weights(whole), weights(resumed), rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", [Normalised, Hooked, OwnTables])
def test_hooks_do_not_cost_a_resumed_fit_its_bits(make: Any, tmp_path: Path) -> None:
    whole = make()
    assert fit(whole, "vectorized").fit_loop.executor.cause is None
    assert torch.equal(weights(whole), resumed_after_two_rounds(make, tmp_path / "two.ckpt"))


@pytest.mark.auto_decides
def test_rounds_with_a_trial_are_counted_beyond_a_resumed_fit(tmp_path: Path) -> None:
    sizes = 4 * (20, 30, 40)
    whole = KeepsHistory()
    assert "too short to check" in fit(whole, "auto", sizes, rounds=5).fit_loop.executor._vectorized.cause
    resumed = resumed_after_two_rounds(KeepsHistory, tmp_path / "two.ckpt", "auto", rounds=5, sizes=sizes)
    assert torch.equal(weights(whole), resumed)


def test_a_resumed_fit_names_what_makes_it_test_stacks_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resumed_after_two_rounds(Stamped, tmp_path / "two.ckpt")
    assert "tested again, because `self.begun` has changed since the last fit" in caplog.text


def test_a_second_fit_looks_for_changes_in_its_first_round() -> None:
    modules = [CountsLater(), CountsLater()]
    for module, executor in zip(modules, ("sequential", "vectorized"), strict=True):
        callback = FedAvg(1.0, seed=1, executor=executor)
        fitter = quiet_trainer(max_epochs=2, callbacks=[callback])
        data = TensorDataModule(clients_of((6,), SIZES), batch_size=4)
        fitter.fit(module, datamodule=data)
        module.on = True
        fitter.fit_loop.max_epochs = 3
        fitter.fit(module, datamodule=data)
    assert torch.allclose(weights(modules[0]), weights(modules[1]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_clients_longer_than_all_before_are_tried_first(seed: int) -> None:
    sizes = (24, 24, 32, 24, 32, 24, 40, 32)  # 6, 8 and 10 batches
    callbacks = [FedAvg(1.0, seed=seed, executor=executor) for executor in ("sequential", "vectorized")]
    modules = [CountsAtTheSeventhBatch(), CountsAtTheSeventhBatch()]
    for module, callback in zip(modules, callbacks, strict=True):
        fit(module, None, sizes, callback=callback)
    assert torch.allclose(weights(modules[0]), weights(modules[1]), rtol=0, atol=1e-10)
    assert [module.seen for module in modules] == [12, 12]  # four longer clients in each of three rounds


class LosesByTheBatch(Module):
    """Has another loss on batches of one sample."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss if len(batch[1]) > 1 else 3 * loss


@pytest.mark.parametrize(("make", "proven"), [(Module, math.inf), (SeesBatchNumbers, 10)])
def test_a_step_that_cannot_know_its_number_is_tried_once(make: Any, proven: float) -> None:
    sizes = (24, 24, 32, 24, 32, 24, 40, 32)  # 6, 8 and 10 batches
    fitter = fit(make(linear()), "vectorized", sizes)
    assert fitter.fit_loop.executor.verdict.proven == proven


@pytest.mark.parametrize("seed", range(4))
def test_a_step_that_turns_out_to_depend_on_the_batch_size_is_tried_anew(seed: int) -> None:
    modules = [LosesByTheBatch(linear()) for _ in range(2)]
    fits = [
        fit(module, None, (8, 8, 12, 8, 9, 8, 12, 8), callback=FedAvg(1.0, seed=seed, executor=executor))
        for module, executor in zip(modules, ("sequential", "vectorized"), strict=True)
    ]
    assert torch.allclose(weights(modules[0]), weights(modules[1]), rtol=0, atol=1e-10)
    assert fits[0].global_step == fits[1].global_step == 3 * 19  # 2 or 3 batches of 4
    verdict = fits[1].fit_loop.executor.verdict
    assert verdict.cause is None and verdict.proven == 3  # mapped


def test_a_resumed_fit_knows_that_the_step_is_no_program(tmp_path: Path) -> None:
    sizes = (8, 8, 12, 8, 9, 8, 12, 8)
    whole, resumed = LosesByTheBatch(linear()), LosesByTheBatch(linear())
    fit(whole, "vectorized", sizes, rounds=4)
    for rounds in (1, 2, 3):
        begun = fit(LosesByTheBatch(linear()), "vectorized", sizes, rounds=rounds)
        begun.save_checkpoint(tmp_path / "last.ckpt")
        fitter = quiet_trainer(max_epochs=4, callbacks=[FedAvg(1.0, seed=1, executor="vectorized")])
        data = TensorDataModule(clients_of((6,), sizes), batch_size=4)
        fitter.fit(resumed, datamodule=data, ckpt_path=tmp_path / "last.ckpt", weights_only=False)
        assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.parametrize("sizes", [(20, 12), (20, 20, 12, 4), (12, 20, 12, 20, 8)])
def test_batch_numbers_of_accumulated_batches(sizes: tuple[int, ...]) -> None:
    options = {"trainer": {"accumulate_grad_batches": 2}, "local_epochs": 2}
    assert_same(lambda: SeesBatchNumbers(linear()), sizes, **options)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_learning_rate_in_a_tensor_is_each_clients_own(executor: str) -> None:
    def optimize(lr: Any) -> Any:
        def make(parameters: Any) -> Any:
            optimizer = torch.optim.SGD(parameters, lr=lr)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        return make

    modules = [Module(linear(), optimize(lr)) for lr in (0.1, torch.tensor(0.1, dtype=torch.float64))]
    for module in modules:
        fit(module, executor)
    assert torch.allclose(weights(modules[0]), weights(modules[1]), rtol=0, atol=1e-10)


class Link:
    """One of many objects in a row."""

    def __init__(self, following: Link | None) -> None:
        self.following = following


@pytest.mark.parametrize("name", ["links", "sparse"])
def test_attributes_that_are_hard_to_compare(name: str) -> None:
    def make() -> Module:
        module, link = Module(linear()), None
        for _ in range(600):
            link = Link(link)
        module.held = link if name == "links" else torch.eye(6).to_sparse()
        return module

    assert_same(make)


def test_what_is_printed_to_the_error_stream_comes_once_for_each_client(capsys: pytest.CaptureFixture[str]) -> None:
    class Tells(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            print("step", file=sys.stderr)
            return super().training_step(batch, batch_idx)

    counts = []
    for executor in ("sequential", "vectorized"):
        fit(Tells(linear()), executor)
        counts.append(capsys.readouterr().err.splitlines().count("step"))
    assert counts == [3 * 17] * 2  # 2, 4, 2, 6 and 3 batches


def test_other_threads_may_write_while_a_stack_is_tried_out(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def write(text: str) -> None:
        try:
            with (tmp_path / "lines.txt").open("a") as file:
                file.write(text)
        except BaseException as error:
            failed.append(error)

    class Hands(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            thread = threading.Thread(target=write, args=("x",))
            thread.start()
            thread.join()
            return super().training_step(batch, batch_idx)

    fit(Hands(linear()), "vectorized", rounds=1)
    assert not failed


def test_a_callback_with_an_executor_of_ones_own_can_be_pickled_after_a_fit() -> None:
    callback = FedAvg(1.0, executor=VectorizedExecutor())
    fit(Module(linear()), None, callback=callback, rounds=1)
    assert isinstance(pickle.loads(pickle.dumps(callback)), FedAvg)


def test_scaffold_stacks_a_module_with_a_layer_that_is_not_used() -> None:
    class HasSpare(Module):
        def __init__(self) -> None:
            super().__init__(linear())
            self.spare = nn.Linear(2, 2).double()

    modules = [HasSpare(), HasSpare()]
    modules[1].load_state_dict(modules[0].state_dict())
    for module, executor in zip(modules, ("sequential", "vectorized"), strict=True):
        fitter = fit(module, None, callback=Scaffold(1.0, seed=1, executor=executor))
    assert fitter.fit_loop.executor.cause is None
    assert torch.allclose(weights(modules[0]), weights(modules[1]), rtol=0, atol=1e-10)


@pytest.mark.auto_decides
def test_a_layout_is_tried_out_again_for_another_module() -> None:
    class Viewed(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            images = batch[0].view(-1, 3, 1, 2)
            hidden = self.layers[0](images).view(len(images), -1)
            return F.cross_entropy(self.layers[1](hidden), batch[1])

    def layers() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Linear(8, 3))

    class Flattened(Viewed):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            hidden = self.layers[0](batch[0].view(-1, 3, 1, 2)).flatten(1)
            return F.cross_entropy(self.layers[1](hidden), batch[1])

    callback = FedAvg(1.0, executor="auto")
    layouts = []
    for kind in (Flattened, Viewed):
        fitter = fit(kind(layers()), None, callback=callback, rounds=1)
        layouts.append(fitter.fit_loop.executor.choice.channels_last)
    assert layouts == [True, False]
