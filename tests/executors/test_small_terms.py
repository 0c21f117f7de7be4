"""Terms smaller than the rounding of a whole training, exceptions that a step catches, and tensors that it fills."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from helpers.stacked import clients_of
from helpers.toys import quiet_trainer
from lightning import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule

SIZES = (16, 16, 12, 16, 16, 12, 16, 16)
STEPS = 3 * (6 * 4 + 2 * 3)  # in three rounds


class Base(LightningModule):
    def __init__(self, activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), activation(), nn.Linear(5, 3))

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: Base, executor: str, dtype: torch.dtype, clients: Any = None, **options: Any) -> tuple[Tensor, Any]:
    """Return the weights, and why clients were not stacked."""
    module = module.to(dtype)
    clients = [(x.to(dtype), y) for x, y in clients or clients_of((6,), SIZES)]
    trainer = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, seed=2, executor=executor)], **options)
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=4))
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return weights, getattr(trainer.fit_loop.executor, "cause", None)


# ---- small terms ----

FILTERS: dict[str, Callable[[Any], bool]] = {
    "requires_grad": lambda p: p.requires_grad,
    "isinstance": lambda p: isinstance(p, nn.Parameter),
    "is_leaf": lambda p: p.is_leaf,
    "type": lambda p: type(p) is nn.Parameter,
}


class Penalty(Base):
    """Adds the squares of the parameters that a filter lets through, as many write it."""

    def __init__(self, chosen: Callable[[Any], bool], weight: float, activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__(activation)
        self.chosen, self.weight = chosen, weight

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        for parameter in self.parameters():
            if self.chosen(parameter):
                loss = loss + self.weight * parameter.square().sum()
        return loss


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("name", FILTERS)
def test_a_small_penalty_of_chosen_parameters(name: str, activation: type[nn.Module]) -> None:
    alone, _ = fit(Penalty(FILTERS[name], 2e-5, activation), "sequential", torch.float32)
    without, _ = fit(Penalty(FILTERS[name], 0.0, activation), "sequential", torch.float32)
    at_once, cause = fit(Penalty(FILTERS[name], 2e-5, activation), "vectorized", torch.float32)
    effect = float((alone - without).abs().max())
    assert effect > 1e-5
    assert float((alone - at_once).abs().max()) < 0.05 * effect
    if name == "type":  # a stack's parameters are of another class, which cannot be hidden
        assert cause is not None
        assert "differs in a stack" in cause
    else:
        assert cause is None


@pytest.mark.parametrize("name", ["requires_grad", "isinstance", "is_leaf"])
def test_a_small_penalty_in_mixed_precision(name: str) -> None:
    everything, _ = fit(Penalty(lambda p: True, 5e-4), "vectorized", torch.float32, precision="bf16-mixed")
    chosen, cause = fit(Penalty(FILTERS[name], 5e-4), "vectorized", torch.float32, precision="bf16-mixed")
    assert cause is None
    assert torch.equal(everything, chosen)


class ReadsGradients(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        before = sum(float(p.grad.abs().sum()) for p in self.parameters() if p.grad is not None)
        return self.loss(batch) * (1 + 1e-5 * before)


def test_gradients_of_accumulated_batches_that_are_read() -> None:
    alone, _ = fit(ReadsGradients(), "sequential", torch.float32, accumulate_grad_batches=2)
    at_once, cause = fit(ReadsGradients(), "vectorized", torch.float32, accumulate_grad_batches=2)
    assert torch.equal(alone, at_once)
    assert cause is not None
    assert cause.startswith(
        "`training_step` reads or clears gradients, which a stack keeps elsewhere (test_small_terms.py, line"
    )


class Asks(Base):
    """Notes what its tensors say of themselves."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        said = [
            batch[0].requires_grad,
            scores.requires_grad,
            scores.detach().requires_grad,
            self.layers[0].weight.is_leaf,
        ]
        return F.cross_entropy(scores, batch[1]) * (1 + sum(2.0**-place for place, true in enumerate(said) if true))


def test_tensors_tell_whether_they_require_gradients() -> None:
    alone, _ = fit(Asks(), "sequential", torch.float64)
    at_once, cause = fit(Asks(), "vectorized", torch.float64)
    assert cause is None
    assert float((alone - at_once).abs().max()) < 1e-12


class LogsAParameter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("bias", self.layers[2].bias[0], on_step=False, on_epoch=True)
        self.log("scale", self.scale, on_step=False, on_epoch=True)
        return self.loss(batch) * self.scale.exp()


def test_parameters_that_are_logged_are_stacked() -> None:
    alone, _ = fit(LogsAParameter(), "sequential", torch.float64)
    at_once, cause = fit(LogsAParameter(), "vectorized", torch.float64)
    assert cause is None
    assert float((alone - at_once).abs().max()) < 1e-12


# ---- noise ----


class Noise(Base):
    def __init__(self, fill: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fill = fill

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        noise = torch.zeros(batch[0].shape)
        self.fill(noise)
        return self.loss((batch[0] + noise.to(batch[0]), batch[1]))


@pytest.mark.parametrize("size", [3e-4, 0.3])
@pytest.mark.parametrize(
    ("fill", "is_stacked"),
    [
        (lambda noise, size: noise.normal_(0, size), True),
        (lambda noise, size: noise.uniform_(-size, size), True),
        (lambda noise, size: noise[1:].normal_(0, size), False),
        (lambda noise, size: nn.init.normal_(noise, 0, size), False),
    ],
)
def test_a_tensor_that_is_filled_with_noise(fill: Any, is_stacked: bool, size: float) -> None:
    alone, _ = fit(Noise(lambda noise: fill(noise, size)), "sequential", torch.float64)
    at_once, cause = fit(Noise(lambda noise: fill(noise, size)), "vectorized", torch.float64)
    assert float((alone - at_once).abs().max()) < 1e-12
    assert (cause is None) == is_stacked


# ---- exceptions ----


class Roots(Base):
    """Takes a factor of a matrix, or of a similar one where the matrix has none."""

    def __init__(self, errors: type[Exception]) -> None:
        super().__init__()
        self.errors = errors

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        square = batch[0][:, :2].T @ batch[0][:, :2]
        try:
            factor = torch.linalg.cholesky(square)
        except self.errors:
            factor = torch.linalg.cholesky(square + 0.1 * torch.eye(2, dtype=square.dtype))
        return F.cross_entropy(self.layers(batch[0]) * factor.diagonal().mean(), batch[1])


@pytest.mark.parametrize("errors", [torch.linalg.LinAlgError, RuntimeError, Exception])
@pytest.mark.parametrize("special", [0, 5])
def test_an_operation_that_fails_for_one_client(errors: type[Exception], special: int) -> None:
    clients = [(0 * x if client == special else x, y) for client, (x, y) in enumerate(clients_of((6,), SIZES))]
    alone, _ = fit(Roots(errors), "sequential", torch.float64, clients)
    at_once, cause = fit(Roots(errors), "vectorized", torch.float64, clients)
    assert float((alone - at_once).abs().max()) < 1e-12
    assert cause is not None
    assert "cholesky" in cause


class Catches(Base):
    """Does something that must not stop the training."""

    def __init__(self, do: Callable[[Catches, Tensor, int], Any], errors: type[BaseException]) -> None:
        super().__init__()
        self.do, self.errors = do, errors

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        with suppress(self.errors):
            self.do(self, loss, batch_idx)
        return loss


class Counts(CSVLogger):
    calls = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls += "mine" in metrics


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
@pytest.mark.parametrize("errors", [Exception, BaseException])
def test_a_logger_that_is_called_with_exceptions_caught(
    executor: str, errors: type[BaseException], tmp_path: Any
) -> None:
    logger = Counts(tmp_path)
    module = Catches(lambda self, loss, index: self.logger.log_metrics({"mine": 1.0}, step=index), errors)
    fit(module, executor, torch.float64, logger=logger)
    assert logger.calls == STEPS


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
@pytest.mark.parametrize(
    "show", [float, lambda loss: loss.tolist(), lambda loss: f"{loss:.3f}", lambda loss: bool(loss > 0)]
)
def test_values_that_are_printed_with_exceptions_caught(
    executor: str, show: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Catches(lambda self, loss, index: print("step", index, show(loss)), Exception), executor, torch.float64)
    assert sum(line.startswith("step") for line in capsys.readouterr().out.splitlines()) == STEPS
