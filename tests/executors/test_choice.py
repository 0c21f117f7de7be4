"""``executor="auto"`` counts, says what it chose, and keeps to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.clients.step_counts import StepCounts, in_words
from fl_lightning.executors import AutoExecutor, SequentialExecutor, VectorizedExecutor
from fl_lightning.executors.auto import _expected_steps, _loss_of_a_stack
from fl_lightning.executors.stack.memory import clients_that_fit


def fit(callback: FedAvg, layers: nn.Module, epochs: int = 2, ckpt_path: Any = None, **trainer: Any) -> Any:
    fitter = quiet_trainer(max_epochs=epochs, **{"callbacks": [callback], **trainer})
    data = TensorDataModule(clients_of((6,), (8, 12, 4, 20)), batch_size=4)
    fitter.fit(Module(layers), datamodule=data, ckpt_path=ckpt_path)
    return fitter


class Convolutions(nn.Module):
    def __init__(self, end: nn.Module | None, channels: int, *between: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Unflatten(1, (channels, 12 // channels, 6)), nn.Conv2d(channels, 4, 3))
        self.layers.extend([nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), *between, end or nn.Flatten()])
        self.layers.append(nn.Linear(8 * (6 // channels - 1), 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.to(self.layers[1].weight.dtype))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("Clients train")]


def test_the_environment_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("sequential", SequentialExecutor), ("vectorized", VectorizedExecutor), ("auto", AutoExecutor)):
        monkeypatch.setenv("FL_LIGHTNING_EXECUTOR", name)
        callback = FedAvg(4)
        assert callback.executor == "auto"
        assert type(fit(callback, linear(), epochs=1).fit_loop.executor) is kind
        assert type(fit(FedAvg(4, executor="sequential"), linear(), 1).fit_loop.executor) is SequentialExecutor
    monkeypatch.setenv("FL_LIGHTNING_EXECUTOR", "fast")
    FedAvg(4, executor="vectorized")
    with pytest.raises(ValueError, match="FL_LIGHTNING_EXECUTOR"):
        FedAvg(4)


@pytest.mark.auto_decides
def test_short_fits_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning.executors.auto._WORTH_A_CAPTURE", 33)  # three rounds of 11 steps
    assert "some 22 steps are too few" in fit(FedAvg(4, seed=1), linear()).fit_loop.executor.describe()
    assert fit(FedAvg(4, seed=1), linear(), epochs=3).fit_loop.executor.cause is None


@pytest.mark.auto_decides
def test_little_arithmetic_is_stacked_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        fitter = fit(FedAvg(4, seed=1), linear())
    assert fitter.fit_loop.executor.cause is None
    [message] = told(caplog)
    assert message.startswith("Clients train in stacks: up to 4 at a time, faster here, same result.")
    # the first client has 8 samples, 2 steps of 4: 2 x 4 x (6 x 5 + 5 x 3) forward, as many for the weights' gradients,
    # and 2 x 4 x 5 x 3 for the hidden layer's
    assert "A client's step has 840 operations." in caplog.text


@pytest.mark.auto_decides
def test_why_there_is_no_stack_of_two(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fit(FedAvg(4, clients_at_once=1, seed=1), linear(), epochs=1)
        fit(FedAvg(4, clients_at_once=1, seed=1, executor="vectorized"), linear(), epochs=1)
    reasons = "`clients_at_once` is 1", "a stack would have one model"
    assert told(caplog) == [f"Clients train one after the other: {reason}." for reason in reasons]


def of_model(values: int, device: str = "cpu", processes: int = 1, nodes: int = 1) -> Any:
    """Return what is asked of a training: a model of so many values in double precision, samples of 1,000 bytes."""
    layout, trainer = SimpleNamespace(size=values), SimpleNamespace(world_size=processes, num_nodes=nodes)
    vector = SimpleNamespace(device=torch.device(device), layout=layout, dtype=torch.float64)
    return SimpleNamespace(vector=vector, trainer=trainer, batches=SimpleNamespace(bytes_per_sample=1000))


@pytest.mark.parametrize(
    ("memory", "training", "number"),
    [
        # six copies of 0.8 MB, and 200 samples of 1,000 bytes, are 5 MB for a client; an eighth of the memory is taken
        (120e6, of_model(100_000), 3),
        (119e6, of_model(100_000), 2),
        (240e6, of_model(100_000, processes=2), 3),
        (240e6, of_model(100_000, processes=2, nodes=2), 5),
        (1, of_model(100_000), 1),
        # 32 MiB of weights are four models of 8 MB, but on other devices
        (1e15, of_model(1_000_000), 4),
        (1e15, of_model(1_000_000, "cuda"), 5),
        (240e6, of_model(100_000, "cuda", processes=2), 5),
    ],
)
def test_as_many_clients_train_at_once_as_fit(
    memory: float, training: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_lightning.executors.stack.memory.total_memory", lambda device: memory)
    tasks: list[Any] = [SimpleNamespace(num_samples=samples) for samples in (100, 200, 10, 20, 30)]
    assert clients_that_fit(training, tasks) == number


@pytest.mark.parametrize(
    ("matrices", "convolves", "operations", "models", "why"),
    [
        (True, True, 3e8 - 1, 2, None),
        (True, False, 3e8, 8, "many operations, and stacks are faster below 300 million"),
        (False, True, 2e6 - 1, 8, None),
        (False, True, 2e6, 8, "many operations, and stacks are faster below 2.0 million"),
        (False, False, 5e6 - 1, 8, None),
        (False, False, 5e6, 8, "many operations, and stacks are faster below 5.0 million"),
        (False, False, 1, 7, "7 at a time are too few for a stack to be faster (8 needed)"),
    ],
)
def test_steps_have_limits_by_their_kind(
    matrices: bool, convolves: bool, operations: float, models: int, why: str | None
) -> None:
    counts = MagicMock(only_matrices=matrices, convolves=convolves, flops=operations)
    counts.__str__.return_value = "many operations"  # type: ignore[attr-defined]
    assert _loss_of_a_stack(counts, models) == why


@pytest.mark.parametrize(("rounds", "steps"), [(10, 6 * (1 + 2)), (-1, float("inf")), (None, float("inf"))])
def test_steps_are_those_of_the_rounds_to_come(rounds: int | None, steps: float) -> None:
    trainer = SimpleNamespace(max_epochs=rounds, current_epoch=4)
    training: Any = SimpleNamespace(trainer=trainer, batches=SimpleNamespace(number=lambda batches: batches))
    assert _expected_steps([1, 2], training) == steps  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("clients", "training", "why"),
    [
        (1, of_model(1), "a round has one client"),
        (1, of_model(1, processes=2), "a process trains one client of a round"),
        (2, of_model(1), "the memory holds one client's model at a time"),
        (2, of_model(2_097_152), "the memory holds one client's model at a time"),
        (2, of_model(2_097_153, "cuda"), "the memory holds one client's model at a time"),
        # two models of 16 MiB and 8 bytes
        (2, of_model(2_097_153), "two models have more than the 32 MiB of weights beyond which a stack waits for mem"),
    ],
)
def test_why_a_stack_would_have_one_client(clients: int, training: Any, why: str) -> None:
    assert AutoExecutor()._why_single(clients, training).startswith(why)


WITH_LAYOUT = "one after the other, with channels last in memory"
SEVERAL = ". On CPUs one process is often faster for stacks than several; try both"


@pytest.mark.parametrize(("processes", "more"), [(1, ""), (2, SEVERAL)])
def test_why_there_are_stacks(processes: int, more: str) -> None:
    executor, training, counts = AutoExecutor(), of_model(1, processes=processes), MagicMock(flops=1)
    training.is_watched, training.trainer.max_epochs, training.batches.number = True, -1, lambda task: 1
    executor._stacks = MagicMock(first_stack=lambda tasks: 8)
    reason = executor._choice([MagicMock()] * 8, training, counts).reason
    assert reason == f"up to 8 at a time, faster here, same result{more}"


@pytest.mark.auto_decides
def test_much_arithmetic_is_not_stacked(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    # 2 x 4 samples x (6 x 512 x 64 + 512 places x 64 x 512 + 512 x 512 x 3) forward are 142.1 million operations, as
    # many for the weights' gradients, and 140.5 million for those of what lies between, where the first layer has none
    places = nn.Sequential(nn.Linear(6, 512 * 64), nn.Unflatten(1, (512, 64)), nn.Linear(64, 512))
    with caplog.at_level(logging.INFO):
        layers = nn.Sequential(places, nn.Flatten(), nn.Linear(512 * 512, 3))
        fit(FedAvg(2, seed=1, clients_at_once=2), layers, epochs=1)
    assert "a client's step has 425 million operations, and stacks are faster below 300 million" in told(caplog)[0]


@pytest.mark.auto_decides
def test_the_clock_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fits, one of them with a clock that runs wild, end with the same bits."""
    states = []
    for wild in (False, True):
        if wild:
            for clock in ("perf_counter", "monotonic"):
                monkeypatch.setattr(f"time.{clock}", partial(next, count(0.0, 997.0)))
        layers = nn.Sequential(*linear(), nn.Dropout(0.2))
        fitter = fit(FedAvg(4, seed=1), layers)
        states.append((fitter.fit_loop.executor.state_dict(), layers.state_dict()))
    assert states[0][0] == states[1][0]
    assert all(torch.equal(value, states[1][1][key]) for key, value in states[0][1].items())


@pytest.mark.auto_decides
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_choice_leaves_no_trace(dropout: float) -> None:
    states = []
    for executor in ("sequential", "auto"):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(dropout), nn.Linear(5, 3))
        fitter = fit(FedAvg(4, seed=1, executor=executor), layers)
        states.append((layers.state_dict(), dict(fitter.callback_metrics), fitter.global_step))
    assert states[1][2] == states[0][2]
    for key, value in states[0][0].items():
        torch.testing.assert_close(states[1][0][key], value, rtol=1e-9, atol=1e-9)
    for key, value in states[0][1].items():
        torch.testing.assert_close(states[1][1][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.auto_decides
def test_a_resumed_run_keeps_the_choice(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    fit(FedAvg(4, seed=1), linear(), callbacks=[FedAvg(4, seed=1), save], enable_checkpointing=True)
    options = {"logger": CSVLogger(tmp_path), "log_every_n_steps": 1}
    # with one client at once a new choice would be another one
    fitter = fit(FedAvg(4, seed=1, clients_at_once=1), linear(), 3, tmp_path / "last.ckpt", **options)
    assert fitter.fit_loop.executor.cause is None
    assert fitter.global_step == 3 * 11  # 8, 12, 4 and 20 samples in batches of 4


@pytest.mark.parametrize(
    ("executor", "state", "told"),
    [
        (VectorizedExecutor(), {"cause": "draws"}, "one after the other: draws"),
        (AutoExecutor(), {"cause": "draws", "reason": "", "channels_last": True}, f"{WITH_LAYOUT}: draws"),
        (AutoExecutor(), {"cause": None, "reason": "faster here", "channels_last": False}, ""),
    ],
)
def test_a_resumed_fit_trains_as_the_one_before(executor: Any, state: Any, told: str) -> None:
    executor.load_state_dict(state)
    assert executor.state_dict() == state
    assert (executor.cause, executor.describe()) == (state["cause"], told)


class MadeOnce(nn.Module):
    """Makes what it needs in its first call."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
        return x * self.table


@pytest.mark.auto_decides
def test_a_resumed_run_that_is_not_stacked_any_more_says_so(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    layers = nn.Sequential(MadeOnce(), *linear())
    fitter = fit(FedAvg(4, seed=1), layers, callbacks=[FedAvg(4, seed=1), save], enable_checkpointing=True)
    assert fitter.fit_loop.executor.cause is None  # the first client, which trained alone, has made the table
    with pytest.warns(UserWarning, match="before the checkpoint, and are not now: .* changes `self.table`"):
        fit(FedAvg(4, seed=1), nn.Sequential(MadeOnce(), *linear()), 3, tmp_path / "last.ckpt")


# ---- channels last ----


class FlattenByView(nn.Module):
    """Fails on channels that are last in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1)


def fit_images(
    *between: nn.Module, end: Any = None, executor: Any = "auto", callbacks: Sequence[Callback] = (), channels: int = 2
) -> tuple[Any, set[bool]]:
    """Train a convolutional network; return the trainer, and whether what it pooled was contiguous."""
    torch.manual_seed(0)
    module = Convolutions(end, channels, *between)
    strides = [parameter.stride() for parameter in module.parameters()]
    contiguous: set[bool] = set()
    if executor != "auto":  # it leaves modules alone that change something
        module.layers[2].register_forward_hook(lambda module, args, out: contiguous.add(out.is_contiguous()))
    fitter = quiet_trainer(max_epochs=2, callbacks=[FedAvg(3, seed=1, executor=executor), *callbacks])
    trained = Module(module).to(torch.float32 if channels == 1 else torch.float64)
    fitter.fit(trained, datamodule=TensorDataModule(clients_of((72,), (8, 12, 6)), batch_size=4))
    assert [parameter.stride() for parameter in module.parameters()] == strides  # as the user gave them
    return fitter, contiguous


@pytest.mark.auto_decides
def test_convolutions_train_with_channels_last(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fitter, _ = fit_images()
    assert "channels last" in fitter.fit_loop.executor.describe()
    assert any("channels last in memory" in record.message for record in caplog.records)
    plain, contiguous = fit_images(executor="sequential")
    assert contiguous == {True}
    for one, other in zip(fitter.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_layout_can_be_given() -> None:
    own, second, normed = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
    second.weight = nn.Parameter(second.weight.detach().transpose(0, 1))
    between = own.to(memory_format=torch.channels_last), second, nn.utils.parametrizations.weight_norm(normed)
    last = SequentialExecutor(channels_last=True)
    assert [fit_images(*between, executor=last, channels=channels)[1] for channels in (1, 2)] == [{False}, {False}]


@pytest.mark.auto_decides
@pytest.mark.parametrize(("between", "end"), [([], FlattenByView()), ([nn.Dropout2d(0.5)], None)], ids=["view", "mask"])
def test_a_module_that_fails_or_draws_otherwise_with_channels_last_is_left_as_it_is(between: Any, end: Any) -> None:
    fitter, _ = fit_images(*between, end=end)
    assert "channels last" not in fitter.fit_loop.executor.describe()


@pytest.mark.auto_decides
def test_callbacks_that_see_clients_see_the_users_layout() -> None:
    seen: list[bool] = []

    class Watch(Callback):
        def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
            seen.append(all(p.is_contiguous() for p in pl_module.parameters()))
            torch.nn.utils.parameters_to_vector(pl_module.parameters())

    fitter, _ = fit_images(callbacks=[Watch()])
    assert seen == [True] * 6
    assert "channels last" not in fitter.fit_loop.executor.describe()


def test_freed_memory_is_kept_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[int, int]] = []
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    library = SimpleNamespace(mallopt=lambda name, value: options.append((name, value)))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    monkeypatch.setattr("sys.platform", "linux")
    fit(FedAvg(4, seed=1), linear())
    assert options == [(-3, 32 << 20), (-1, 512 << 20)]  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    options.clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    fit(FedAvg(4, seed=1), linear())
    assert not options
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())  # another C library
    fit(FedAvg(4, seed=1), linear())


# 28 rows (7 steps of 4 samples), two operations for each value of a weight matrix
@pytest.mark.parametrize(
    ("layer", "values"),
    [
        (nn.LSTM(3, 5, 2), 20 * (3 + 5) + 20 * (5 + 5)),
        (nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True), 2 * (20 * (3 + 5) + 20 * (10 + 5))),
        (nn.LSTM(3, 5, 2, proj_size=2), 20 * (3 + 2) + 5 * 2 + 20 * (2 + 2) + 5 * 2),
        (nn.LSTM(3, 5, 2).double(), 20 * (3 + 5) + 20 * (5 + 5)),
        (nn.GRU(3, 5, 2), 15 * (3 + 5) + 15 * (5 + 5)),
        (nn.RNN(3, 5, 2), 5 * (3 + 5) + 5 * (5 + 5)),
    ],
    ids=["lstm", "both ways", "projected", "double", "gru", "rnn"],
)
def test_all_layers_of_a_recurrent_network_count(layer: nn.RNNBase, values: int) -> None:
    with StepCounts() as counts:
        layer(torch.randn(7, 4, 3, dtype=layer.weight_ih_l0.dtype))
    assert counts.flops == 2 * 28 * values


def test_the_way_back_through_a_recurrent_network_counts_twice() -> None:
    layer = nn.LSTM(3, 5)
    with StepCounts() as counts:
        layer(torch.randn(7, 4, 3, requires_grad=True))[0].sum().backward()
    assert counts.flops == 3 * 2 * 28 * 20 * (3 + 5)


def test_numbers_of_operations_have_units() -> None:
    texts = {840: "840", 12_300: "12 thousand", 1e6: "1.0 million", 1e9: "1.0 billion"}
    assert {number: in_words(number) for number in texts} == texts
