"""Steps and batches that `torch.func.vmap` or a stack would treat otherwise than a client alone.

The first two clients of a fit are tried both ways, and nothing is wrong with them; it is with the last client.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

CLIENTS, STEPS = 8, 4
EXECUTORS = ["sequential", "vectorized", "auto"]


class Weights(L.LightningModule):
    """Steps have learning rate 1 and batches of one sample, so the weights move by the gradient of each sample."""

    def __init__(self, weights: list[Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(weights, dtype=torch.float64))

    def loss(self, batch: Any) -> Tensor:
        raise NotImplementedError

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def fit(module: L.LightningModule, data: L.LightningDataModule, executor: Any) -> L.LightningModule:
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
    trainer.fit(module, datamodule=data)
    return module


def of_samples(usual: Any, last: Any, make_batch: Callable[[list[Any]], Any]) -> ClientDatasetsModule:
    """Return clients with four equal samples each; the last client has others."""
    clients: list[Any] = [[usual] * STEPS for _ in range(CLIENTS - 1)] + [[last] * STEPS]
    return ClientDatasetsModule(clients, batch_size=1, collate_fn=make_batch)


# ---- tables of all clients ----


class Looks(Weights):
    def loss(self, batch: Any) -> Tensor:
        return F.embedding(batch[0], self.w, padding_idx=0).sum()


def ids(*last: int) -> TensorDataModule:
    """Return clients that hold 1, and clients that hold 2, four times, and a last one."""
    rows = [torch.full((STEPS,), 1 + client % 2) for client in range(CLIENTS - 1)] + [torch.tensor(last)]
    return TensorDataModule([(row,) for row in rows], batch_size=1, shuffle=False)


@pytest.mark.parametrize("executor", [*EXECUTORS, VectorizedExecutor()])
def test_the_row_of_padding_is_not_trained_in_any_row_of_a_stack(executor: Any) -> None:
    module = fit(Looks([[0.0], [0.0], [0.0]]), ids(0, 0, 1, 2), executor)
    # four clients move row 1 by -4 and three row 2, the last one each by -1
    assert module.w.flatten().tolist() == [0, -17 / 8, -13 / 8]
    assert getattr(executor, "cause", None) is None


@pytest.mark.parametrize("last", [3, -1])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_index_beyond_the_table_is_the_error_of_a_client_alone(executor: str, last: int) -> None:
    with pytest.raises(IndexError, match="index out of range"):
        fit(Looks([[0.0], [0.0], [0.0]]), ids(1, 1, 1, last), executor)


class Encodes(Weights):
    def loss(self, batch: Any) -> Tensor:
        return (F.one_hot(batch[0], 3) * self.w).sum()


@pytest.mark.parametrize("last", [3, -1])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_class_that_is_none_is_the_error_of_a_client_alone(executor: str, last: int) -> None:
    with pytest.raises(RuntimeError, match="Class values must be"):
        fit(Encodes([0.0, 0.0, 0.0]), ids(1, 1, 1, last), executor)


class Clears(Weights):
    def loss(self, batch: Any) -> Tensor:
        return self.w.index_fill(0, batch[0], 0.0).sum()


@pytest.mark.parametrize("executor", [*EXECUTORS, VectorizedExecutor()])
def test_an_index_from_the_end_fills_the_clients_own(executor: Any) -> None:
    # each step moves two of three weights by -1: not 1 four times, not 2 three times, and not the last one four times
    module = fit(Clears([0.0, 0.0, 0.0]), ids(-1, -1, -1, -1), executor)
    assert module.w.tolist() == [-4, -4 * 4 / 8, -4 * 4 / 8]
    assert getattr(executor, "cause", None) is None


class Gaussian(Weights):
    """Learns a mean and a variance of zeros, below which 1/2 is taken; both are scaled by the sample."""

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        return F.gaussian_nll_loss(self.w[:1] * x, torch.zeros_like(x), self.w[1:] * y, full=True, eps=0.5)


@pytest.mark.parametrize("executor", [*EXECUTORS, VectorizedExecutor()])
def test_a_gaussian_loss_with_a_variance_of_each_client(executor: Any) -> None:
    # the variances are y * w = 1, 2 and, where y is 0, 1/2: one step each
    rows = [(torch.tensor([x]).double(), torch.tensor([y]).double()) for x, y in ((1, 1), (1, 2), (2, 1), (1, 0))]
    module = fit(Gaussian([3.0, 1.0]), TensorDataModule(rows, batch_size=1), executor)
    # (m x)^2 / 2v + log(v) / 2: m moves by -m x^2 / v, and w by ((m x)^2 / v^2 - 1 / v) / 2 * y
    means, variances = [0, 3 - 3 / 2, 3 - 12, 3 - 6], [1 + 4, 1 + (9 / 4 - 1 / 2), 1 + (36 - 1) / 2, 1]
    torch.testing.assert_close(module.w.tolist(), [sum(means) / 4, sum(variances) / 4], rtol=1e-12, atol=0)
    assert getattr(executor, "cause", None) is None


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_negative_variance_is_the_error_of_a_client_alone(executor: str) -> None:
    rows = [(torch.ones(1, dtype=torch.float64), torch.tensor([y]).double()) for y in (1, 1, 1, -1)]
    with pytest.raises(ValueError, match="var has negative entry"):
        fit(Gaussian([3.0, 1.0]), TensorDataModule(rows, batch_size=1), executor)


class Constant(Weights):
    """Uses tables and indices that all clients have in common."""

    def loss(self, batch: Any) -> Tensor:
        last = self.w.index_fill(0, torch.tensor([-1]), 0.0)
        return (F.one_hot(torch.arange(3)) * last).sum() * batch[0][0]


def test_indices_that_clients_have_in_common_are_stacked() -> None:
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = fit(Constant([0.0, 0.0, 0.0]), ids(1, 1, 1, 1), executor)
        # five clients step by 1 and three by 2, four times each
        assert module.w.tolist() == [-(5 * 4 + 3 * 8) / 8] * 2 + [0]
    assert stacks.cause is None


class Replaces(Weights):
    """Puts the weights in the place of one row of a constant table, if there are two samples."""

    def loss(self, batch: Any) -> Tensor:
        if len(batch[0]) == 1:
            return self.w.sum()
        scale = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
        table = torch.ones(2, 2, dtype=torch.float64) * batch[0].sum()
        return (torch.select_scatter(table, self.w, 0, -1) * scale).sum()


@pytest.mark.parametrize("sizes", [[1, 1, 2, 2], [2, 2, 2, 2]])
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_the_gradient_of_a_replaced_row_is_its_own(executor: Any, sizes: list[int]) -> None:
    data = TensorDataModule([(torch.ones(size),) for size in sizes], batch_size=2)
    # a sample alone moves both weights by 1, two move them by 1 and 2; clients are weighted by their samples
    both, samples = 2 * sizes.count(2), sum(sizes)
    expected = [-1.0, -(2 * both + sizes.count(1)) / samples]
    module = Replaces([0.0, 0.0])
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
    trainer.fit(module, datamodule=data)
    assert module.w.tolist() == pytest.approx(expected)
    assert getattr(trainer.fit_loop.executor, "cause", None) is None


# ---- equal values ----


class Largest(Weights):
    def loss(self, batch: Any) -> Tensor:
        return (self.w * batch[0][0]).max()


@pytest.mark.parametrize("executor", [*EXECUTORS, VectorizedExecutor()])
def test_equal_largest_values_share_their_gradient(executor: Any) -> None:
    rows = torch.tensor([[1.0, 2.0]] * (CLIENTS - 1) + [[1.0, 1.0]], dtype=torch.float64)
    data = TensorDataModule([(row.expand(STEPS, 2),) for row in rows], batch_size=1)
    module = fit(Largest([1.0, 1.0]), data, executor)
    # (1, 2): (1, 1), (1, -1), (0, -1), (-1, -1), (-2, -1); (1, 1): each half a step, to (-1, -1)
    assert module.w.tolist() == [-15 / 8, -1]
    assert getattr(executor, "cause", None) is None


class LargestByName(Largest):
    def loss(self, batch: Any) -> Tensor:
        return torch.max(input=self.w * batch[0][0])


@pytest.mark.parametrize("executor", [*EXECUTORS, VectorizedExecutor()])
def test_equal_largest_values_of_an_argument_by_name_share_their_gradient(executor: Any) -> None:
    rows = torch.tensor([[1.0, 2.0]] * (CLIENTS - 1) + [[1.0, 1.0]], dtype=torch.float64)
    data = TensorDataModule([(row.expand(STEPS, 2),) for row in rows], batch_size=1)
    assert fit(LargestByName([1.0, 1.0]), data, executor).w.tolist() == [-15 / 8, -1]
    assert getattr(executor, "cause", None) is None


class Middle(Weights):
    def loss(self, batch: Any) -> Tensor:
        return (self.w * batch[0][0]).median()


def test_the_gradient_of_a_median_is_that_of_a_client_alone() -> None:
    row = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    stacks, weights = VectorizedExecutor(), []
    for executor in ("sequential", stacks):
        data = TensorDataModule([(row.expand(STEPS, 3),)] * CLIENTS, batch_size=1)
        weights.append(fit(Middle([1.0, 1.0, 1.0]), data, executor).w.tolist())
    assert weights[0] == weights[1]
    assert stacks.cause is not None and "the gradient of `median` of a whole tensor is another" in stacks.cause


# ---- batches of unequal shapes ----


class Drops(Module):
    """Draws a mask in another order of axes, which a stack cannot draw for each client alone."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = F.alpha_dropout(self.layers[0](batch[0]).t(), 0.5, training=True).t()
        return F.cross_entropy(self.layers[1](hidden), batch[1])


class DropsInOrder(Drops):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = F.dropout(self.layers[0](batch[0]), 0.5)
        return F.cross_entropy(self.layers[1](hidden), batch[1])


def weights_of_both(make: Callable[[], Module]) -> tuple[Tensor, Tensor, str | None]:
    """Return the weights of whole batches of 5, 6, 7 and 8 samples, trained both ways, and why not stacked.

    The first two clients share no shape, later ones do.
    """
    clients = clients_of((4,), (5, 6, 7, 8) * 3)
    stacks, found = VectorizedExecutor(), []
    for executor in ("sequential", stacks):
        module = fit(make(), TensorDataModule(clients, batch_size=None), executor)
        found.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    return found[0], found[1], stacks.cause


def test_clients_of_unequal_sizes_are_mapped_in_a_trial() -> None:
    expected, found, cause = weights_of_both(Drops)
    assert torch.equal(expected, found)
    assert cause is not None and "order in which random numbers are drawn" in cause


def test_clients_of_unequal_sizes_draw_their_own_numbers() -> None:
    expected, found, cause = weights_of_both(DropsInOrder)
    assert torch.allclose(expected, found, rtol=0, atol=1e-12)
    assert cause is None


# ---- what batches hold beside their tensors ----


@dataclass
class Sentence:
    ids: Tensor
    mask: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mask = (self.ids != 0).double()
        self.weight = self.mask.sum()  # no field


class Masked(Weights):
    def loss(self, batch: Any) -> Tensor:
        return (self.w * batch.mask).sum() * batch.weight


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_a_dataclass_makes_of_its_fields_is_each_clients_own(executor: str) -> None:
    one, none = torch.tensor([1, 1]), torch.tensor([1, 0])
    data = of_samples(one, none, lambda samples: Sentence(samples[0]))
    # steps of (-2, -2); of the last client (-1, 0)
    assert fit(Masked([0.0, 0.0]), data, executor).w.tolist() == [-(7 * 8 + 4) / 8, -7]


class Kind(enum.Enum):
    LABELLED = "l"
    UNLABELLED = "u"


class Asks(Weights):
    def __init__(self, is_usual: Callable[[Any], bool]) -> None:
        super().__init__([0.0])
        self.is_usual = is_usual

    def loss(self, batch: Any) -> Tensor:
        return self.w.sum() * (1 if self.is_usual(batch["kind"]) else 2)


@pytest.mark.parametrize(
    ("usual", "last", "is_usual"),
    [
        (True, False, lambda kind: kind is True),
        (False, True, lambda kind: kind is False),
        (None, True, lambda kind: kind is None),
        (Kind.LABELLED, Kind.UNLABELLED, lambda kind: kind is Kind.LABELLED),
    ],
)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_flag_of_a_batch_is_each_clients_own(executor: str, usual: Any, last: Any, is_usual: Any) -> None:
    data = of_samples(usual, last, lambda samples: {"x": torch.zeros(1), "kind": samples[0]})
    # seven clients move by -4, the last one by -8
    assert fit(Asks(is_usual), data, executor).w.tolist() == [-36 / 8]


class Sample(dict[str, Any]):
    """A dictionary with an attribute, which Lightning takes as it is."""

    kind = True

    def to(self, device: Any) -> Sample:
        return self


class Rows(list[Tensor]):
    kind = True

    def to(self, device: Any) -> Rows:
        return self


class Text(str):
    kind = True


def marked(batch: Any, kind: Any) -> Any:
    if not kind:
        batch.kind = kind
    return batch


class AsksFor(Weights):
    def __init__(self, kind_of: Callable[[Any], Any]) -> None:
        super().__init__([0.0])
        self.kind_of = kind_of

    def loss(self, batch: Any) -> Tensor:
        return self.w.sum() * (1 if self.kind_of(batch) else 2)


@pytest.mark.parametrize(
    ("make_batch", "kind_of"),
    [
        (lambda kind: marked(Sample(x=torch.zeros(1)), kind), lambda batch: batch.kind),
        (lambda kind: marked(Rows([torch.zeros(1)]), kind), lambda batch: batch.kind),
        (lambda kind: {"x": torch.zeros(1), "text": marked(Text("a"), kind)}, lambda batch: batch["text"].kind),
    ],
    ids=["dictionary", "list", "text"],
)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_attribute_of_a_container_is_each_clients_own(executor: str, make_batch: Any, kind_of: Any) -> None:
    data = of_samples(True, False, lambda samples: make_batch(samples[0]))
    assert fit(AsksFor(kind_of), data, executor).w.tolist() == [-36 / 8]


@dataclass
class Output(dict[str, Any]):
    """A dictionary with fields, as outputs of transformers are."""

    x: Tensor

    def __post_init__(self) -> None:
        self["x"] = self.x

    def to(self, device: Any) -> Output:
        return self


class OfOutput(Weights):
    def loss(self, batch: Any) -> Tensor:
        return (self.w * batch["x"]).sum()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_a_dictionary_with_fields_holds_is_each_clients_own(executor: str) -> None:
    # the clients of a trial share no shape: three have 1, 2, 3, 4 samples of 1 each, but one of them 4 samples of 2
    clients: list[Any] = [[2.0 if client == 3 else 1.0] * (1 + client % 4) for client in range(12)]
    data = ClientDatasetsModule(clients, batch_size=None, collate_fn=lambda samples: Output(torch.tensor(samples)))
    expected = -(3 * (1 * 1 + 2 * 2 + 3 * 3) + 2 * 4 * 4 + 4 * 8) / 30  # each client's sum, weighted by its number
    assert fit(OfOutput([0.0]), data, executor).w.tolist() == pytest.approx([expected])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rows_of_a_subclass_are_not_gathered_into_plain_ones(executor: str) -> None:
    rows = [torch.zeros(STEPS, 1)] * (CLIENTS - 1) + [torch.zeros(STEPS, 1).as_subclass(Picture)]
    data = TensorDataModule([(own,) for own in rows], batch_size=1)
    assert fit(Marks(lambda x: not isinstance(x, Picture)), data, executor).w.tolist() == [-36 / 8]


class Marks(Weights):
    def __init__(self, is_usual: Callable[[Tensor], bool]) -> None:
        super().__init__([0.0])
        self.is_usual = is_usual

    def loss(self, batch: Any) -> Tensor:
        return self.w.sum() * (1 if self.is_usual(batch[0]) else 2)


class Picture(Tensor):
    pass


def with_attribute() -> Tensor:
    x = torch.zeros(1)
    x.noisy = True  # type: ignore[attr-defined]
    return x


@pytest.mark.parametrize(
    ("make_last", "is_usual"),
    [
        (with_attribute, lambda x: not hasattr(x, "noisy")),
        (lambda: torch.zeros(1).as_subclass(Picture), lambda x: not isinstance(x, Picture)),
        (lambda: torch.zeros(1, requires_grad=True), lambda x: not x.requires_grad),
    ],
    ids=["attribute", "subclass", "gradients"],
)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_tensors_that_are_more_than_their_values_are_not_stacked(executor: str, make_last: Any, is_usual: Any) -> None:
    data = of_samples(False, True, lambda samples: [make_last() if samples[0] else torch.zeros(1)])
    assert fit(Marks(is_usual), data, executor).w.tolist() == [-36 / 8]


# ---- new tensors that are changed in place ----


class OneHot(Weights):
    """The weight of each sample's class, by a table of zeros that is changed in place."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__([0.0, 0.0, 0.0])
        self.change = change

    def loss(self, batch: Any) -> Tensor:
        table = torch.zeros(len(batch[0]), 3, dtype=torch.float64)
        self.change(table, batch[0])
        return (table * self.w).sum()


def by_position(table: Tensor, y: Tensor) -> None:
    table[torch.arange(len(y)), y] = 1


def by_sum(table: Tensor, y: Tensor) -> None:
    table += F.one_hot(y, 3)


def through_a_view(table: Tensor, y: Tensor) -> None:
    table.t()[y, torch.arange(len(y))] = 1


@pytest.mark.parametrize(
    ("change", "is_stacked"),
    [
        (lambda table, y: table.scatter_(1, y[:, None], 1.0), True),
        (lambda table, y: table.add_(F.one_hot(y, 3)), True),
        (by_position, True),
        (by_sum, True),
        (through_a_view, False),
    ],
)
def test_a_new_tensor_that_is_changed_in_place_is_each_clients_own(change: Any, is_stacked: bool) -> None:
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = fit(OneHot(change), ids(0, 0, 1, 2), executor)
        assert module.w.tolist() == [-2 / 8, -17 / 8, -13 / 8]
    assert (stacks.cause is None) == is_stacked


class Kept(OneHot):
    """The table is kept from step to step."""

    def __init__(self) -> None:
        super().__init__(by_sum)
        self.table = torch.zeros(1, 3, dtype=torch.float64)

    def loss(self, batch: Any) -> Tensor:
        self.table += F.one_hot(batch[0], 3)
        return (self.table * self.w).sum()


def test_a_tensor_that_is_kept_is_one_for_all_clients() -> None:
    found = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        found.append(fit(Kept(), ids(0, 0, 1, 2), executor).w.tolist())
    assert found[0] == found[1]
    assert stacks.cause is not None and "self.table" in stacks.cause


class ByView(Weights):
    """Reads a tensor's view that was made before the tensor is changed."""

    def loss(self, batch: Any) -> Tensor:
        table = torch.zeros(1, 3, dtype=torch.float64)
        row = table.view(3)
        table += F.one_hot(batch[0], 3)
        return (row * self.w).sum()


def test_a_view_sees_the_changes_of_its_tensor() -> None:
    for executor in ("sequential", stacks := VectorizedExecutor()):
        assert fit(ByView([0.0, 0.0, 0.0]), ids(0, 0, 1, 2), executor).w.tolist() == [-2 / 8, -17 / 8, -13 / 8]
    assert stacks.cause is not None


class BySeveralViews(Weights):
    """Reads what sees a table; the table changes later, for one client alone."""

    def __init__(self, look: Callable[[Tensor], Any]) -> None:
        super().__init__([0.0, 0.0, 0.0])
        self.look = look

    def loss(self, batch: Any) -> Tensor:
        table = torch.zeros(3, dtype=torch.float64)
        seen = self.look(table)
        table += F.one_hot(batch[0][0], 3) * (batch[0][0] == 0)
        row = torch.stack(list(seen)) if isinstance(seen, tuple | list) else torch.as_tensor(seen)
        return ((row + F.one_hot(batch[0][0], 3)) * self.w).sum()


@pytest.mark.parametrize(
    "look",
    [
        lambda table: table.unbind(),
        list,
        lambda table: table.split(3)[0],
        lambda table: table.detach(),
        lambda table: table.data,
        lambda table: table.numpy(),
        lambda table: torch.broadcast_tensors(table, torch.ones(3))[0],
        lambda table: torch.atleast_1d(table, torch.ones(3))[0].view(3),
    ],
    ids=["unbind", "iterator", "split", "detach", "data", "numpy", "broadcast", "list"],
)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_whatever_sees_a_new_tensor_sees_its_changes(executor: str, look: Any) -> None:
    module = fit(BySeveralViews(look), ids(0, 0, 1, 2), executor)
    # twice 1 for each label of 0
    assert module.w.tolist() == [-4 / 8, -17 / 8, -13 / 8]


class InATotal(Weights):
    """Returns a total to which the loss was added in place, and logs another."""

    def loss(self, batch: Any) -> Tensor:
        total, samples = torch.zeros((), dtype=torch.float64), torch.zeros(())
        total.add_((F.one_hot(batch[0], 3) * self.w).sum())
        samples.add_(batch[0].sum())
        self.log("ids", samples, on_step=False, on_epoch=True, reduce_fx="sum")
        return total


def test_a_total_that_is_changed_in_place_is_returned_and_logged_as_each_clients_own() -> None:
    for executor in ("sequential", stacks := VectorizedExecutor()):
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
        trainer.fit(module := InATotal([0.0, 0.0, 0.0]), datamodule=ids(0, 0, 1, 2))
        assert module.w.tolist() == [-2 / 8, -17 / 8, -13 / 8]
        assert trainer.callback_metrics["ids"] == 4 * 4 + 3 * 8 + 3
    assert stacks.cause is None


class Smoothed(Module):
    """Has weights of classes and smoothed labels; samples of class 2 are ignored."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        return F.cross_entropy(self.layers(batch[0]), batch[1], weights, ignore_index=2, label_smoothing=0.1)


def test_weighted_classes_with_smoothed_labels_are_stacked() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    weights = []
    for own, executor in zip(layers, ("sequential", stacks := VectorizedExecutor()), strict=True):
        module = fit(Smoothed(own), TensorDataModule(clients_of((6,)), batch_size=8), executor)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    assert stacks.cause is None
    assert torch.allclose(weights[0], weights[1], rtol=1e-10, atol=1e-13)
