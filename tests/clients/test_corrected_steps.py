"""What objectives add to gradients reaches the step: scalers, sparse gradients, optimizers that look at the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Optimizer, SparseAdam

from fl_lightning import ExamplePrivacy, FedAvg, FedDyn, Federated, FedNova, FedProx, Scaffold, TensorDataModule
from fl_lightning.parts import ChangedLoss, LocalObjective, Term
from fl_lightning.testing.fits import fit

# ---- a gradient scaler: gradients are multiplied by the scale until the optimizer, or the scaler, divides them ----


class Slope(L.LightningModule):
    """The loss is w times the batch's mean, so that a client's gradient is its slope, exact in half precision."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.w, self.fused = nn.Parameter(torch.zeros(1)), fused

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.w * batch[0]).mean()

    def configure_optimizers(self) -> Optimizer:
        return SGD(self.parameters(), lr=0.125, fused=self.fused)


def scaled(callbacks: list[Any], slopes: list[float], fused: bool, scale: float = 2.0**16, rounds: int = 1) -> Any:
    """Return the trainer after rounds of four steps."""
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))
    data = TensorDataModule([(torch.full((32, 1), slope),) for slope in slopes], batch_size=8)
    return fit(callbacks[0], Slope(fused), data, rounds, *callbacks[1:], plugins=[plugin])


def end_of(*arguments: Any, **options: Any) -> float:
    """Return w after rounds of four steps."""
    return float(scaled(*arguments, **options).lightning_module.w)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_pulls_under_a_scaler(fused: bool, executor: Any) -> None:
    # w <- w - 1/8 (1 + 4 w): -1/8, -3/16, -7/32, -15/64
    assert end_of([FedProx(4.0, 1.0, executor=executor)], [1.0, 1.0], fused) == -15 / 64
    # FedDyn's server goes beyond the mean of clients by the mean drift
    assert end_of([FedDyn(4.0, 1.0, executor=executor)], [1.0, 1.0], fused) == -15 / 32


@pytest.mark.parametrize("fused", [False, True])
def test_control_variates_under_a_scaler(fused: bool) -> None:
    # four steps against slopes 1 and 3 end at -1/2 and -3/2; then both clients follow the mean slope, 2
    callback = Scaffold(1.0)
    assert end_of([callback], [1.0, 3.0], fused, rounds=2) == -2.0
    assert [callback.client_control_variate(k).item() for k in (0, 1)] == [1.0, 3.0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_step_that_the_scaler_skips_does_not_count(fused: bool, momentum: float) -> None:
    # 3 times 2^127 is infinite in single precision, half of that is not: three of four steps are made
    callback = Scaffold(1.0, momentum=momentum)
    module_moves = end_of([callback], [3.0], fused, scale=2.0**127)
    assert module_moves == -9 / 8
    reach = {0.0: 3.0, 0.5: 1 + 1.5 + 1.75}[momentum]  # of three steps, if the optimizer had the momentum
    assert callback.client_control_variate(0).item() == pytest.approx(9 / reach, rel=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_private_gradients_under_a_scaler(fused: bool) -> None:
    # a gradient of 100 becomes 1, in each of four steps
    privacy = ExamplePrivacy(1.0, noise_multiplier=0.0, delta=1e-5)
    assert end_of([privacy, FedAvg(1.0)], [100.0], fused) == -0.5


# ---- sparse gradients ----


class Words(L.LightningModule):
    def __init__(self, sparse: bool, optimizer: Callable[..., Optimizer] = SGD) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3).double()
        self.words = nn.Embedding(30, 4, sparse=sparse).double()
        self.out.requires_grad_(optimizer is SGD)
        self.optimizer = optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.out(self.words(batch[0]).mean(1)), batch[1])

    def configure_optimizers(self) -> Optimizer:
        return self.optimizer([p for p in self.parameters() if p.requires_grad], lr=0.1)


def weights_of_words(callback: Any, sparse: bool, optimizer: Callable[..., Optimizer] = SGD) -> Tensor:
    L.seed_everything(1, verbose=False)
    module = Words(sparse, optimizer)
    clients = [(torch.randint(30, (n, 5)), torch.randint(3, (n,))) for n in (4, 8)]
    fit(callback, module, TensorDataModule(clients, batch_size=4), 2)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def corrected(*makes: Callable[..., Any]) -> Iterator[Any]:
    """Return algorithms that correct steps, one after the other and stacked; in a stack they share the way."""
    for place, make in enumerate(makes):
        yield pytest.param(make, "sequential")
        yield pytest.param(make, "vectorized", marks=[pytest.mark.long] * (place % 3 > 0))


@pytest.mark.parametrize(
    ("make", "executor"),
    corrected(
        *(partial(FedProx, 0.1, 1.0), partial(FedProx, 0.0, 1.0), partial(FedDyn, 0.1, 1.0)),
        *(partial(Scaffold, 1.0), partial(Scaffold, 1.0, option=1), partial(FedNova, 1.0, mu=0.1)),
    ),
)
def test_sparse_gradients_give_the_weights_of_dense_ones(make: Callable[..., Any], executor: Any) -> None:
    ends = [weights_of_words(make(executor=executor), sparse) for sparse in (False, True)]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-13)


def test_an_optimizer_of_sparse_gradients_alone() -> None:
    with pytest.raises(RuntimeError, match="consider Adam"):
        weights_of_words(FedProx(0.1, 1.0), True, SparseAdam)
    assert weights_of_words(FedProx(0.0, 1.0), True, SparseAdam).isfinite().all()


# ---- optimizers that look at the loss ----


def searching() -> Quadratic:
    """Return a module whose optimizer searches along lines."""
    options = {"max_iter": 30, "tolerance_grad": 1e-13, "tolerance_change": 1e-15, "line_search_fn": "strong_wolfe"}
    return Quadratic(0.5, make_optimizer=partial(LBFGS, **options))


class Polyak(Optimizer):
    """Steps by loss / |gradient|^2."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        [parameter] = self.param_groups[0]["params"]
        with torch.no_grad():
            parameter.sub_(loss / parameter.grad.square() * parameter.grad)
        return loss


ONE = quadratic_clients([1.0], [4.0])


def test_a_line_search_minimises_the_corrected_objective() -> None:
    # 1/2 (w - 4)^2 + 1/2 (w - w')^2 has its minimum at (4 + w') / 2
    assert fit_quadratic(FedProx(1.0, 1.0), searching(), ONE, 2).item() == pytest.approx(3.0, abs=1e-9)
    # FedDyn with equal curvatures: the mean of the optima from the first round on
    clients = quadratic_clients([1.0, 1.0, 1.0], [0.0, 3.0, 9.0])
    assert fit_quadratic(FedDyn(1.0, 1.0), searching(), clients, 3).item() == pytest.approx(4.0, abs=1e-9)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_an_optimizer_of_a_users_own_sees_the_terms_value(precision: Any) -> None:
    # from 0: loss 8, gradient -4, so to 2; there loss 2 + 4 and gradient -2 + 4, so to 2 - 6/4 2
    module = Quadratic(0.5, make_optimizer=Polyak)
    data = TensorDataModule(ONE, batch_size=None)
    fit(FedProx(2.0, 1.0, local_steps=2), module, data, 1, precision=precision)
    assert module.w.item() == -1.0


class Cubic(Term):
    """|w - w'|^3."""

    def add(self, parameters: Any, start: Any, linear: Any) -> None:
        for parameter, received in zip(parameters, start, strict=True):
            drift = parameter.detach() - received
            parameter.grad.add_(3 * drift * drift.abs())

    def value(self, parameters: Any, start: Any, linear: Any) -> Any:
        return sum(
            (parameter - received).abs().pow(3).sum() for parameter, received in zip(parameters, start, strict=True)
        )


class Adds(LocalObjective):
    def correction(self, client: Any) -> Term:
        return Cubic()


def test_a_term_of_another_form_has_a_value_of_its_own() -> None:
    # w - 4 + 3 w^2 = 0 at (-1 + 7) / 6
    end = fit_quadratic(Federated(1.0, objective=Adds()), searching(), ONE, 1)
    assert end.item() == pytest.approx(1.0, abs=1e-9)


# ---- a term beside a changed loss ----


class Line(L.LightningModule):
    """1/2 (w - 4)^2, with w the weight of a linear layer, at first 0, which is called by keyword or not."""

    def __init__(self, by_keyword: bool) -> None:
        super().__init__()
        self.by_keyword = by_keyword
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        product = self.layer(input=batch[0]) if self.by_keyword else self.layer(batch[0])
        return 0.5 * (product - 4.0 - batch_idx).square().mean()

    def configure_optimizers(self) -> Optimizer:
        return SGD(self.parameters(), lr=0.5)


class DoubledWithPull(LocalObjective):
    """2 x F_k(w) + 1/2 |w - w'|^2, where x is the feature."""

    def correction(self, client: Any) -> ChangedLoss:
        return ChangedLoss(lambda loss, forward: 2 * forward.features.mean() * loss, term=Term(pull=1.0))


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_changed_loss_may_have_a_term_beside_it(by_keyword: bool) -> None:
    module = Line(by_keyword)
    data = TensorDataModule([(torch.ones(1, 1),)], batch_size=1)
    fit(Federated(1.0, objective=DoubledWithPull(), local_steps=2), module, data, 1)
    # gradients 2 (w - 4) + w: -8 at 0, which leads to 4; then 2 (w - 5) + w, which is 2 there
    assert module.layer.weight.item() == 3.0


# ---- steps that pass by ----


class PastLightning(Quadratic):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.optimizer.step(optimizer_closure)


def test_steps_past_lightning_are_an_error_where_gradients_are_corrected() -> None:
    hint = "PastLightning has changed the weights of client 0 without a step of an optimizer that Lightning knows of"
    assert fit_quadratic(FedAvg(1.0), PastLightning(0.5), ONE, 1).item() == 2.0
    with pytest.raises(ValueError, match=hint):
        fit_quadratic(FedProx(1.0, 1.0), PastLightning(0.5), ONE, 1)


def test_a_group_without_gradients_is_no_hindrance() -> None:
    class Spare(Quadratic):
        def configure_optimizers(self) -> Optimizer:
            self.spare = nn.Parameter(torch.zeros(1))
            return SGD([{"params": [self.spare]}, {"params": [self.w]}], lr=0.5)

    assert fit_quadratic(FedProx(1.0, 1.0), Spare(0.5), ONE, 1).item() == 2.0


class ByItself(Quadratic):
    """Steps in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__(0.5)
        self.way, self.automatic_optimization = way, False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = super().training_step(batch, batch_idx)
        if self.way == "nothing":
            return None
        if self.way == "in place":
            [gradient] = torch.autograd.grad(loss, self.w)
            with torch.no_grad():
                self.w.sub_(0.5 * gradient)
            return None
        optimizer = self.optimizers(use_pl_optimizer=self.way == "Lightning")
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None


def end(callback: Any, way: str) -> float:
    """Return where the client goes from 0, half of the way to 4 by each step."""
    return float(fit_quadratic(callback, ByItself(way), ONE, 2))


@pytest.mark.parametrize("way", ["in place", "torch"])
@pytest.mark.parametrize(
    "make",
    [
        *(partial(FedProx, 1.0, 1.0), partial(FedDyn, 1.0, 1.0), partial(Scaffold, 1.0)),
        *(partial(FedNova, 1.0), partial(FedNova, 1.0, mu=1.0)),
    ],
)
def test_what_would_have_no_effect_is_an_error(make: Callable[[], Any], way: str) -> None:
    with pytest.raises(ValueError, match=r"ByItself has changed the weights of client 0 .*`training_step`"):
        end(make(), way)


def test_other_steps_are_the_modules_own_affair() -> None:
    assert [end(FedAvg(1.0), way) for way in ("in place", "torch", "Lightning", "nothing")] == [3.0, 3.0, 3.0, 0.0]
    # 0 -> 2; the pull to the start is 0 at the only step
    assert [end(FedProx(1.0, 1.0), way) for way in ("Lightning", "nothing")] == [3.0, 0.0]
    assert [end(FedNova(1.0), way) for way in ("Lightning", "nothing")] == [3.0, 0.0]
