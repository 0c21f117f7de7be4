"""Accuracy by client: oracle O18, a client of 10 right samples and one of 90 wrong ones have mean 0.5, pooled 0.1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import Classifier, clients_of
from helpers.toys import quiet_trainer
from helpers.written import assert_as_in, messages
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import ClientMetrics, FedAvg, PersonalParameters, TensorDataModule
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


class Silent(Echo):
    """Returns nothing from its steps, and takes batches of any kind."""

    def __init__(self) -> None:
        super().__init__(False)

    def evaluate(self, batch: Any, stage: str) -> None:
        pass


class OtherRows(Echo):
    """Returns other rows than one for each sample."""

    def __init__(self, rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__(True)
        self.rows = rows

    def evaluate(self, batch: Any, stage: str) -> dict[str, Tensor] | None:
        return dict(zip(("preds", "target"), self.rows(*batch), strict=True))


def scores(right: int, wrong: int) -> tuple[Tensor, Tensor]:
    """Return samples of class 0, the first ``right`` of which are recognised."""
    x = torch.tensor([[1.0, 0.0]] * right + [[0.0, 1.0]] * wrong)
    return x, torch.zeros(right + wrong, dtype=torch.long)


CLIENTS = [scores(10, 0), scores(0, 90)]
ECHO = Echo(True)


def data(val: Any) -> TensorDataModule:
    # batches of 7 do not end where clients do
    return TensorDataModule(clients=[scores(1, 1)], val=val, test=val, eval_batch_size=7)


def evaluate(module: Any, datamodule: Any, metrics: ClientMetrics, stage: str = "validate") -> Any:
    """Return what an evaluation logs."""
    [logged] = getattr(quiet_trainer(callbacks=[metrics]), stage)(module, datamodule=datamodule, verbose=False)
    return logged


def values_of(module: L.LightningModule, datamodule: Any, *metric: Any) -> dict[int, float]:
    """Return the clients' values of an accuracy, or of another metric."""
    evaluate(module, datamodule, metrics := ClientMetrics(*metric))
    return metrics.values["val"]


@pytest.mark.parametrize("returns_scores", [True, False])
@pytest.mark.parametrize(("stage", "key"), [("validate", "val"), ("test", "test")])
def test_mean_over_clients_is_unweighted(returns_scores: bool, stage: str, key: str) -> None:
    logged = evaluate(Echo(returns_scores), data(CLIENTS), metrics := ClientMetrics(), stage)
    ends = {"": 0.5, "_std": 0.5, "_min": 0.0, "_max": 1.0, "_lowest10": 0.0, "_weighted": 0.1}
    assert logged == pytest.approx({f"{key}_acc": 0.1} | {f"{key}_acc_clients{end}": x for end, x in ends.items()})
    assert metrics.values == metrics.shared_values == {key: {0: 1.0, 1: 0.0}}
    assert metrics.own_values == {}


def test_a_metric_of_all_clients_samples_together() -> None:
    logged = evaluate(ECHO, data(CLIENTS), ClientMetrics(pooled=True))
    assert (logged["val_acc_clients"], logged["val_acc_clients_pooled"]) == (0.5, pytest.approx(10 / 100))


def test_a_shared_model_may_be_scored_as_a_personal_one() -> None:
    logged = evaluate(ECHO, data(CLIENTS), metrics := ClientMetrics(always_personal=True), "test")
    both = {name.replace("personal", "clients"): value for name, value in logged.items() if "personal" in name}
    assert both == {name: value for name, value in logged.items() if "clients" in name}
    assert metrics.own_values == {}
    assert (logged["test_acc_personal"], logged["test_acc_personal_weighted"]) == (0.5, pytest.approx(0.1))


class Regression(Silent):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def test_predictions_that_are_no_scores_need_another_metric() -> None:
    def largest_error(preds: Tensor, target: Tensor) -> Tensor:
        return (preds - target).abs().max()

    assert values_of(Regression(), data(CLIENTS), largest_error, "error") == {0: 1.0, 1: 0.0}
    # two samples of three words and two of four, each with a target
    assert unequal(torch.zeros_like)["test_sum_clients_pooled"] == 14.0


def test_another_metric_may_leave_clients_out() -> None:
    def share_of_small(preds: Tensor, target: Tensor) -> Tensor:
        return torch.tensor(float("nan")) if len(target) > 50 else torch.tensor(0.25)

    logged = evaluate(ECHO, data(CLIENTS), ClientMetrics(share_of_small, name="small"))
    assert (logged["val_small_clients"], logged["val_small_clients_left_out"]) == (0.25, 1)
    logged = evaluate(ECHO, data(CLIENTS[1:]), ClientMetrics(share_of_small, name="small"))
    assert {name: value for name, value in logged.items() if "small" in name} == {"val_small_clients_left_out": 1}


def test_the_lowest_tenth_and_the_weights_are_of_the_clients_that_have_a_value() -> None:
    # client k has the value k; of the 20 that have one, 0 and 1 are the lowest tenth, and the last has 5 samples
    def number(preds: Tensor, target: Tensor) -> Tensor:
        return preds[0, 0] if preds[0, 0] < 20 else torch.tensor(float("nan"))

    sets = [(torch.full((1 + 4 * (k == 19), 2), float(k)), torch.zeros(1 + 4 * (k == 19)).long()) for k in range(22)]
    logged = evaluate(ECHO, data(sets), ClientMetrics(number, name="n"))
    ends = {"": 9.5, "_std": (399 / 12) ** 0.5, "_min": 0, "_max": 19, "_lowest10": 0.5, "_left_out": 2}
    expected = {f"val_n_clients{end}": value for end, value in (ends | {"_weighted": (171 + 5 * 19) / 24}).items()}
    assert {name: value for name, value in logged.items() if "_n_" in name} == pytest.approx(expected)


def test_samples_without_clients_are_told() -> None:
    pooled = TensorDataModule([scores(1, 0)], val=scores(3, 1), test=[scores(2, 2)], batch_size=2)
    with pytest.warns(UserWarning, match="the validation samples belong to no client") as told:
        assert set(evaluate(Echo(False), pooled, metrics := ClientMetrics())) == {"val_acc"}
    assert metrics.values == {}
    assert len([each for each in told if "belong to no client" in str(each.message)]) == 1
    # the data module of the evaluation before has as many samples
    trainer = quiet_trainer(callbacks=[ClientMetrics()])
    trainer.validate(ECHO, datamodule=data(CLIENTS), verbose=False)
    with pytest.warns(UserWarning, match="the validation samples belong to no client"):
        trainer.validate(ECHO, DataLoader(TensorDataset(*scores(50, 50)), 7), verbose=False)


def test_samples_of_many_labels_are_given_whole() -> None:
    def right(preds: Tensor, target: Tensor) -> Tensor:
        return (preds.argmax(2) == target).double().mean()

    words = OtherRows(lambda x, y: (torch.stack([x, x.flip(1)], 1), torch.stack([y, y], 1)))
    # the second word has the other class's score: half of the words are right, for both clients
    assert values_of(words, data([scores(3, 0), scores(0, 9)]), right) == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.float16, torch.bfloat16])
def test_predictions_keep_their_type(kind: torch.dtype) -> None:
    value = 2 if kind.itemsize == 2 else 2**30

    # 2 ** 30 + 2 is no float32; half precision is computed with as float32
    def rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full((len(x),), value + 2, dtype=kind), y

    def excess(preds: Tensor, target: Tensor) -> Tensor:
        assert preds.dtype == (torch.float32 if kind.itemsize == 2 else kind)
        return (preds - value).max()

    assert values_of(OtherRows(rows), data(CLIENTS), excess, "excess") == {0: 2, 1: 2}


#: Samples of three elements.
MASKED = [(x, torch.ones(len(x), dtype=torch.long), y) for x, y in CLIENTS]
WEIGHTED = [(x, y, torch.full((len(x),), 0.5)) for x, y in CLIENTS]


def test_the_target_of_three_elements_is_the_one_that_the_data_module_names() -> None:
    class SecondIsTarget(TensorDataModule):
        def outputs_and_targets(self, batch: Any, outputs: Any) -> tuple[Any, Any]:
            return outputs, batch[1]

    for sets, place in ((MASKED, 2), (WEIGHTED, 1)):
        named = TensorDataModule(clients=[sets[0]], val=sets, eval_batch_size=7, target=place)
        assert values_of(Silent(), named) == {0: 1.0, 1: 0.0}
    second = SecondIsTarget(clients=[WEIGHTED[0]], val=WEIGHTED, eval_batch_size=7)
    assert values_of(Silent(), second) == {0: 1.0, 1: 0.0}


def test_what_a_step_returns_says_the_target_for_own_models_too() -> None:
    class Scores(Classifier):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss((batch[0], batch[-1]))

        def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
            return {"preds": self(batch[0]), "target": batch[-1]}

    plain = clients_of(9, 9)
    three = [(x, 2 - y, y) for x, y in plain]
    found = []
    for sets in (plain, three):
        metrics = ClientMetrics()
        callbacks = [FedAvg(1.0, exchange=PersonalParameters("layers.2")), metrics]
        trainer = quiet_trainer(max_epochs=2, callbacks=callbacks)
        trainer.fit(Scores(), datamodule=TensorDataModule(sets, val=sets))
        found.append(metrics.values["val"])
    assert found[0] == found[1]


def test_targets_of_shape_n_1_are_flattened() -> None:
    assert values_of(Silent(), data([(x, y[:, None]) for x, y in CLIENTS])) == {0: 1.0, 1: 0.0}


class Rows(Dataset[dict[str, Tensor]]):
    """Samples as dicts: three of class 0, two recognised."""

    def __init__(self, x: str, y: str) -> None:
        self.names = x, y

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return dict(zip(self.names, (torch.tensor([1.0, index - 0.5]), torch.tensor(0)), strict=True))


def test_a_dict_of_one_input_and_a_label_is_read() -> None:
    rows = Rows("image", "label")
    assert values_of(Silent(), ClientDatasetsModule([rows], val=[rows])) == {0: pytest.approx(2 / 3)}


class ReadsRows(Echo):
    def evaluate(self, batch: Any, stage: str) -> dict[str, Tensor] | None:
        return super().evaluate((batch["x"], batch["y"]), stage)


@pytest.mark.parametrize(("stage", "told"), [("validate", "validation"), ("test", "test")])
def test_dicts_need_scores_from_the_step_where_there_are_clients(stage: str, told: str) -> None:
    rows = Rows("x", "y")
    pooled = ClientDatasetsModule([rows], val=rows, test=rows)
    with pytest.warns(UserWarning, match=f"the {told} samples belong to no client"):
        assert "val_acc_clients" not in evaluate(ReadsRows(False), pooled, ClientMetrics(), stage)
    evaluate(ReadsRows(True), OWNED, metrics := ClientMetrics(), stage)
    assert list(metrics.values.values()) == [{0: pytest.approx(2 / 3), 1: pytest.approx(2 / 3)}]


OWNED = ClientDatasetsModule([Rows("x", "y")], val=[Rows("x", "y")] * 2, test=[Rows("x", "y")] * 2)


class OwnLoader(TensorDataModule):
    """Its loader is its own."""

    def __init__(self, number: int = 1, **options: Any) -> None:
        super().__init__(clients=[scores(1, 1)], val=CLIENTS, test=CLIENTS)
        self.options, self.number = options, number

    def val_dataloader(self) -> Any:
        whole = TensorDataset(*map(torch.cat, zip(*CLIENTS, strict=True)))
        return [DataLoader(whole, **{"batch_size": 9, **self.options}) for _ in range(self.number)]

    test_dataloader = val_dataloader


def test_a_loader_may_go_through_the_set_in_order() -> None:
    assert values_of(ECHO, OwnLoader()) == {0: 1.0, 1: 0.0}


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Sentences of the given lengths, whose words score their own class; of the last word the target is another."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        words = torch.zeros(self.lengths[index], dtype=torch.long)
        target = words.clone()
        target[-1] = 1
        return torch.nn.functional.one_hot(words, 2).double(), target


def padded(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    scores, targets = zip(*rows, strict=True)
    return pad(list(scores), batch_first=True), pad(list(targets), batch_first=True, padding_value=-100)


def pictures(size: int, right: int) -> TensorDataset:
    """Return a picture whose first pixels are right."""
    target = (torch.arange(size * size) >= right).long().view(1, size, size)
    return TensorDataset(torch.stack([torch.ones(1, size, size), torch.zeros(1, size, size)], 1), target)


# a sentence of T words has T - 1 right ones; the second batch holds sentences of both clients
SENTENCES = [Sentences([2, 3, 4]), Sentences([5, 7])]
OF_WORDS = [6 / 9, 10 / 12], 16 / 21, (3 * 6 / 9 + 2 * 10 / 12) / 5


@pytest.mark.parametrize(
    ("sets", "collate", "values", "pooled", "weighted"),
    [
        (SENTENCES, padded, *OF_WORDS),
        (SENTENCES, lambda rows: (padded(rows)[0].movedim(2, 1), padded(rows)[1]), *OF_WORDS),
        # pixels
        ([pictures(2, 1), pictures(4, 12)], None, [1 / 4, 12 / 16], 13 / 20, (1 / 4 + 12 / 16) / 2),
    ],
    ids=["padded sentences", "their classes in the second dimension", "pictures of unequal sizes"],
)
def test_samples_of_unequal_shapes(
    sets: Any, collate: Any, values: list[float], pooled: float, weighted: float
) -> None:
    size = len(sets[1])
    data = ClientDatasetsModule(sets, test=sets, collate_fn=collate, batch_size=size, eval_batch_size=size)
    logged = evaluate(Silent(), data, metrics := ClientMetrics(pooled=True), "test")
    assert [*metrics.values["test"].values()] == values
    assert logged["test_acc_clients_pooled"] == pytest.approx(pooled)
    assert logged["test_acc_clients_weighted"] == pytest.approx(weighted)  # by samples


class Mute(Echo):
    forward = L.LightningModule.forward


class OfTwo(Silent):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Take batches of several loaders."""


def unequal(target: Callable[[Tensor], Tensor]) -> Any:
    sets = [TensorDataset(x, target(x)) for x in (torch.ones(2, 3), torch.ones(2, 4))]
    data = ClientDatasetsModule(sets, test=sets, batch_size=2, eval_batch_size=2)
    return evaluate(Silent(), data, ClientMetrics(lambda preds, target: preds.sum(), "sum", pooled=True), "test")


def rows(make: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[[Path], Any]:
    return lambda _: values_of(OtherRows(make), data(CLIENTS))


def found(value: Any) -> Callable[[Path], Any]:
    return lambda _: values_of(ECHO, data(CLIENTS), lambda preds, target: value, "m")


#: What is evaluated; the text file has the error.
REFUSED: dict[str, Callable[[Path], Any]] = {
    "a regression": lambda _: values_of(Regression(), data([(x, y + 0.5) for x, y in CLIENTS])),
    "a metric that returns nothing": found(None),
    "a metric that returns a word": found("good"),
    "a metric that returns a vector": found(torch.ones(3)),
    "no forward": lambda _: values_of(Mute(False), data(CLIENTS)),
    "masks before the targets": lambda _: values_of(Silent(), data(MASKED)),
    "weights behind the targets": lambda _: values_of(Silent(), data(WEIGHTED)),
    "dicts": lambda _: values_of(ReadsRows(False), OWNED),
    "a row too few": rows(lambda x, y: (x[1:], y[1:])),  # a label is ignored
    "two words for each sentence": rows(lambda x, y: (x.repeat(2, 1), y.repeat(2))),
    "targets too many": rows(lambda x, y: (x, y.repeat(2))),
    "a scalar": rows(lambda x, y: (x, y[0])),
    "a loader in another order": lambda _: evaluate(ECHO, OwnLoader(shuffle=True), ClientMetrics(), "test"),
    "a loader of single samples": lambda _: values_of(Silent(), OwnLoader(batch_size=None)),
    "two loaders": lambda _: values_of(OfTwo(), OwnLoader(2)),
    "samples of unequal shapes": lambda _: unequal(lambda x: x[:, 0]),
}


def test_what_is_refused(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), messages(REFUSED, tmp_path), tmp_path)
