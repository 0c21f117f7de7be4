"""Accuracy by client: oracle O18, a client of 10 right samples and one of 90 wrong ones have mean 0.5, pooled 0.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ClientMetrics, TensorDataModule
from fl_lightning.data import ClientDatasetsModule


class Echo(L.LightningModule):
    """Scores are the inputs themselves."""

    def __init__(self, returns_scores: bool) -> None:
        super().__init__()
        self.returns_scores = returns_scores

    def forward(self, x: Tensor) -> Tensor:
        return x

    def evaluate(self, batch: Any, stage: str) -> dict[str, Tensor] | None:
        x, y = batch
        self.log(f"{stage}_acc", (x.argmax(1) == y).float().mean())
        return {"preds": x, "target": y} if self.returns_scores else None

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor] | None:
        return self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor] | None:
        return self.evaluate(batch, "test")


def scores(right: int, wrong: int) -> tuple[Tensor, Tensor]:
    """Return samples of class 0, the first ``right`` of which are recognised."""
    x = torch.tensor([[1.0, 0.0]] * right + [[0.0, 1.0]] * wrong)
    return x, torch.zeros(right + wrong, dtype=torch.long)


CLIENTS = [scores(10, 0), scores(0, 90)]


def data(val: Any) -> TensorDataModule:
    # batches of 7 do not end where clients do
    return TensorDataModule(clients=[scores(1, 1)], val=val, test=val, eval_batch_size=7)


@pytest.mark.parametrize("returns_scores", [True, False])
@pytest.mark.parametrize("stage", ["validate", "test"])
def test_mean_over_clients_is_unweighted(returns_scores: bool, stage: str) -> None:
    metrics = ClientMetrics()
    trainer = quiet_trainer(callbacks=[metrics])
    [logged] = getattr(trainer, stage)(Echo(returns_scores), datamodule=data(CLIENTS), verbose=False)
    key = {"validate": "val", "test": "test"}[stage]
    assert logged[f"{key}_acc"] == pytest.approx(0.1)
    assert logged[f"{key}_acc_clients"] == 0.5
    assert logged[f"{key}_acc_clients_std"] == 0.5
    assert (logged[f"{key}_acc_clients_min"], logged[f"{key}_acc_clients_max"]) == (0.0, 1.0)
    assert metrics.values[key] == {0: 1.0, 1: 0.0}


def test_a_metric_of_all_clients_samples_together() -> None:
    trainer = quiet_trainer(callbacks=[ClientMetrics(pooled=True)])
    [logged] = trainer.validate(Echo(True), datamodule=data(CLIENTS), verbose=False)
    assert (logged["val_acc_clients"], logged["val_acc_clients_pooled"]) == (0.5, pytest.approx(10 / 100))


def test_a_shared_model_may_be_scored_as_a_personal_one() -> None:
    [logged] = quiet_trainer(callbacks=[ClientMetrics(always_personal=True)]).test(
        Echo(True), datamodule=data(CLIENTS), verbose=False
    )
    assert (logged["test_acc_personal"], logged["test_acc_personal_weighted"]) == (0.5, pytest.approx(0.1))


def test_predictions_that_are_no_scores_need_another_metric() -> None:
    class Regression(Echo):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0]

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    def largest_error(preds: Tensor, target: Tensor) -> Tensor:
        return (preds - target).abs().max()

    halves = data([(x, y + 0.5) for x, y in CLIENTS])
    with pytest.raises(ValueError, match=r"predictions of shape \(10,\) and targets of shape \(10,\)"):
        quiet_trainer(callbacks=[ClientMetrics()]).validate(Regression(False), datamodule=halves, verbose=False)
    trainer = quiet_trainer(callbacks=[ClientMetrics(largest_error, "error")])
    [logged] = trainer.validate(Regression(False), datamodule=data(CLIENTS), verbose=False)
    assert (logged["val_error_clients_min"], logged["val_error_clients_max"]) == (0.0, 1.0)


def test_another_metric_may_leave_clients_out() -> None:
    def share_of_small(preds: Tensor, target: Tensor) -> Tensor:
        return torch.tensor(float("nan")) if len(target) > 50 else torch.tensor(0.25)

    trainer = quiet_trainer(callbacks=[ClientMetrics(share_of_small, name="small")])
    [logged] = trainer.validate(Echo(True), datamodule=data(CLIENTS), verbose=False)
    assert logged["val_small_clients"] == 0.25
    assert logged["val_small_clients_left_out"] == 1


@pytest.mark.parametrize("found", [None, "good", torch.ones(3)])
def test_a_metric_must_return_a_number(found: Any) -> None:
    trainer = quiet_trainer(callbacks=[ClientMetrics(lambda preds, target: found, name="m")])
    with pytest.raises((TypeError, ValueError, RuntimeError), match="`metric` of ClientMetrics"):
        trainer.validate(Echo(True), datamodule=data(CLIENTS), verbose=False)


def test_a_global_validation_set_has_no_clients() -> None:
    metrics = ClientMetrics()
    [logged] = quiet_trainer(callbacks=[metrics]).validate(Echo(True), datamodule=data(CLIENTS[0]), verbose=False)
    assert set(logged) == {"val_acc"}
    assert metrics.values == {}


def test_samples_without_clients_and_modules_without_forward_are_told() -> None:
    class Mute(Echo):
        forward = L.LightningModule.forward

    pooled = TensorDataModule([scores(1, 0)], val=scores(3, 1), test=[scores(2, 2)], batch_size=2)
    trainer = quiet_trainer(callbacks=[ClientMetrics()])
    with pytest.warns(UserWarning, match="belong to no client") as told:
        trainer.validate(Echo(False), datamodule=pooled, verbose=False)
    assert len([each for each in told if "belong to no client" in str(each.message)]) == 1
    with pytest.raises(NotImplementedError, match=r"Mute.*forward"):
        trainer.test(Mute(False), datamodule=pooled, verbose=False)


class OtherRows(Echo):
    """Returns other rows than one for each sample."""

    def __init__(self, rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__(True)
        self.rows = rows

    def evaluate(self, batch: Any, stage: str) -> dict[str, Tensor] | None:
        preds, target = self.rows(*batch)
        return {"preds": preds, "target": target}


def test_samples_of_many_labels_are_given_whole() -> None:
    def right(preds: Tensor, target: Tensor) -> Tensor:
        return (preds.argmax(2) == target).double().mean()

    metrics = ClientMetrics(right)
    words = OtherRows(lambda x, y: (torch.stack([x, x.flip(1)], 1), torch.stack([y, y], 1)))
    quiet_trainer(callbacks=[metrics]).validate(words, datamodule=data([scores(3, 0), scores(0, 9)]), verbose=False)
    # the second word has the other class's score: half of the words are right, for both clients
    assert metrics.values["val"] == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(("kind", "expected"), [(torch.float64, 2), (torch.int64, 2), (torch.float16, 0)])
def test_predictions_keep_their_type(kind: torch.dtype, expected: int) -> None:
    # 2 ** 30 + 2 is no float32; half precision has 1.0 in its place, and is computed with as float32
    value = 1 if kind is torch.float16 else 2**30
    seen = []

    def excess(preds: Tensor, target: Tensor) -> Tensor:
        seen.append(preds.dtype)
        return (preds - value).max()

    def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full((len(x),), value, dtype=kind) + (0 if kind is torch.float16 else 2), y

    metrics = ClientMetrics(excess, "excess")
    quiet_trainer(callbacks=[metrics]).validate(OtherRows(rows), datamodule=data(CLIENTS), verbose=False)
    assert metrics.values["val"] == {0: expected, 1: expected}
    assert set(seen) == {torch.float32 if kind is torch.float16 else kind}


class Silent(Echo):
    """Returns nothing from its steps, and takes batches of any kind."""

    def evaluate(self, batch: Any, stage: str) -> None:
        pass


class SecondIsTarget(TensorDataModule):
    def outputs_and_targets(self, batch: Any, outputs: Any) -> tuple[Any, Any]:
        return outputs, batch[1]


def values_of(module: L.LightningModule, datamodule: TensorDataModule | ClientDatasetsModule) -> dict[int, float]:
    metrics = ClientMetrics()
    quiet_trainer(callbacks=[metrics]).validate(module, datamodule=datamodule, verbose=False)
    return metrics.values["val"]


def test_the_target_is_the_last_element_unless_the_data_module_says_otherwise() -> None:
    masked = [(x, torch.ones(len(x), dtype=torch.long), y) for x, y in CLIENTS]
    assert values_of(Silent(False), data(masked)) == {0: 1.0, 1: 0.0}
    weighted = [(x, y, torch.full((len(x),), 0.5)) for x, y in CLIENTS]
    with pytest.raises(ValueError, match="`outputs_and_targets`"):
        values_of(Silent(False), data(weighted))
    second = SecondIsTarget(clients=[weighted[0]], val=weighted, eval_batch_size=7)
    assert values_of(Silent(False), second) == {0: 1.0, 1: 0.0}


def test_targets_of_shape_n_1_are_flattened() -> None:
    assert values_of(Silent(False), data([(x, y[:, None]) for x, y in CLIENTS])) == {0: 1.0, 1: 0.0}


def test_clients_of_samples_are_asked_for_once_an_evaluation() -> None:
    class Counts(TensorDataModule):
        asked = 0

        def eval_client_ids(self, stage: Any) -> Any:
            self.asked += 1
            return super().eval_client_ids(stage)

    many = Counts(clients=[scores(1, 1)], val=[scores(1, 0), scores(0, 1)] * 5, eval_batch_size=1)
    values = values_of(Echo(True), many)
    assert values == {client: float(client % 2 == 0) for client in range(10)}
    assert many.asked == 1


class Labelled(Dataset[dict[str, Tensor]]):
    """Dicts of one input and a label: three of class 0, two recognised."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": torch.tensor([1.0, float(2 * index > 3)]) * torch.tensor([1.0, 2.0]), "label": torch.tensor(0)}


def test_a_dict_of_one_input_and_a_label_is_read() -> None:
    owned = ClientDatasetsModule([Labelled()], val=[Labelled()])
    assert values_of(Silent(False), owned) == {0: pytest.approx(2 / 3)}


class Rows(Dataset[dict[str, Tensor]]):
    """Samples as dicts: three of class 0, all recognised."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.tensor([1.0, 0.0]), "y": torch.tensor(0)}


class ReadsRows(Echo):
    def evaluate(self, batch: Any, stage: str) -> dict[str, Tensor] | None:
        return super().evaluate((batch["x"], batch["y"]), stage)


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_dicts_need_scores_from_the_step_where_there_are_clients(stage: str) -> None:
    metrics = ClientMetrics()
    run = getattr(quiet_trainer(callbacks=[metrics]), stage)
    pooled = ClientDatasetsModule([Rows()], val=Rows(), test=Rows())
    assert "val_acc_clients" not in run(ReadsRows(False), datamodule=pooled, verbose=False)[0]
    owned = ClientDatasetsModule([Rows()], val=[Rows(), Rows()], test=[Rows(), Rows()])
    run(ReadsRows(True), datamodule=owned, verbose=False)
    assert list(metrics.values.values()) == [{0: 1.0, 1: 1.0}]
    with pytest.raises(TypeError, match="`label`, `labels` or `target`"):
        run(ReadsRows(False), datamodule=owned, verbose=False)


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        (lambda x, y: (x[1:], y[1:]), "6 and 6"),  # a label is ignored
        (lambda x, y: (x.repeat(2, 1), y.repeat(2)), "14 and 14"),  # two words for each sentence
        (lambda x, y: (x, y.repeat(2)), "7 and 14"),
    ],
)
def test_each_sample_needs_one_row(rows: Any, got: str) -> None:
    words = rf"one row of predictions and of targets for each of a batch's 7 samples, in their order, got {got} rows"
    with pytest.raises(ValueError, match=words):
        quiet_trainer(callbacks=[ClientMetrics()]).validate(OtherRows(rows), datamodule=data(CLIENTS), verbose=False)


@pytest.mark.filterwarnings("ignore")
def test_a_loader_must_go_through_the_set_in_order() -> None:
    class OwnLoader(TensorDataModule):
        def val_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*map(torch.cat, zip(*CLIENTS, strict=True))), 9, shuffle=shuffled)

    for shuffled in (False, True):
        metrics, own = ClientMetrics(), OwnLoader(clients=[scores(1, 1)], val=CLIENTS)
        trainer = quiet_trainer(callbacks=[metrics])
        if shuffled:
            with pytest.raises(ValueError, match="val_dataloader"):
                trainer.validate(Echo(True), datamodule=own, verbose=False)
        else:
            trainer.validate(Echo(True), datamodule=own, verbose=False)
            assert metrics.values["val"] == {0: 1.0, 1: 0.0}
