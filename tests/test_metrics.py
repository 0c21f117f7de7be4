from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor

from fl_lightning import ClientMetrics, TensorDataModule, metrics
from fl_lightning.metrics import accuracy, auroc, c_index, mean_iou, weighted_f1
from fl_lightning.models import Classifier


def two_class(odds: list[float]) -> Tensor:
    """Return logits of two classes whose difference is given."""
    return torch.stack([torch.zeros(len(odds)), torch.tensor(odds)], dim=1)


def accurate(classes: list[int], number: int) -> Tensor:
    """Return scores of (4, 3) sure predictions of the given classes."""
    return 5.0 * torch.nn.functional.one_hot(torch.tensor(classes), number)


# three of four predictions are right
SCORES, CLASSES = accurate([2, 0, 1, 1], 3), torch.tensor([2, 0, 1, 0])


@pytest.mark.parametrize(
    "target",
    [
        CLASSES,
        CLASSES[:, None],
        CLASSES.double(),
        CLASSES.to(torch.uint8),
        torch.nn.functional.one_hot(CLASSES, 3),
        0.1 + 0.7 * torch.nn.functional.one_hot(CLASSES, 3),  # soft: 0.8 + 0.1 + 0.1
    ],
)
def test_classes_of_any_type_and_shape_are_the_same_classes(target: Tensor) -> None:
    assert accuracy(SCORES, target).item() == 0.75
    # class 0: 1 hit, 1 predicted, 2 samples: 2/3; class 1: 1 hit, 2 predicted, 1 sample: 2/3; class 2: 1
    # of the same classes, unions are of 2, 2 and 1
    assert mean_iou(SCORES, target).item() == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)
    assert weighted_f1(SCORES, target).item() == pytest.approx((2 * 2 / 3 + 2 / 3 + 1) / 4)
    assert auroc(SCORES, target).item() == pytest.approx(auroc(SCORES, CLASSES).item())


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.int64])
def test_one_logit_is_of_class_1(shape: tuple[int, ...], kind: torch.dtype) -> None:
    logits, target = torch.tensor([3.0, -2.0, 1.0, 0.5]).reshape(shape), torch.tensor([1, 0, 0, 1]).to(kind)
    assert accuracy(logits, target).item() == accuracy(logits, target[:, None]).item() == 0.75
    # pairs: 3 > -2, 3 > 1, 0.5 > -2, but 0.5 < 1
    assert auroc(logits, target).item() == 0.75
    # class 0: 1 hit, 1 predicted, 2 samples: 2/3; class 1: 2 hits, 3 predicted, 2 samples: 4/5
    assert weighted_f1(logits, target).item() == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_each_pixel_and_token_counts() -> None:
    # as many classes as tokens: two sequences of three tokens, five of six right; in sequences classes are last
    sequences = accurate([0, 1, 2, 0, 1, 2], 3).view(2, 3, 3)
    labels = torch.tensor([[0, 1, 2], [0, 1, 1]])
    assert accuracy(sequences, labels).item() == pytest.approx(5 / 6)
    # two classes of three tokens fit in one way alone
    assert accuracy(accurate([0, 1, 1], 2).T[None], torch.tensor([[0, 1, 0]])).item() == pytest.approx(2 / 3)
    # in images they are second, also where all dimensions have the same size
    images = accurate([0, 1, 0, 1, 0, 1, 0, 1], 2).view(2, 2, 2, 2).movedim(3, 1)
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 1, 1]).view(2, 2, 2)
    assert accuracy(images, labels).item() == accuracy(images, labels[:, None]).item() == 7 / 8
    # class 0: 3 hits, 4 predicted, 3 pixels; class 1: 4 hits, 4 predicted, 5 pixels
    assert mean_iou(images, labels).item() == pytest.approx((3 / 4 + 4 / 5) / 2)
    # one logit for each pixel
    assert accuracy(torch.tensor([1.0, -1.0]).view(1, 1, 1, 2), torch.tensor([[[1, 1]]])).item() == 0.5


def test_labels_that_are_ignored_do_not_count() -> None:
    ignored = torch.tensor([2, -100, 1, 0])
    assert accuracy(SCORES, ignored).item() == pytest.approx(2 / 3)
    assert weighted_f1(SCORES, ignored).item() == weighted_f1(SCORES[[0, 2, 3]], ignored[[0, 2, 3]]).item()
    assert auroc(SCORES, ignored).item() == auroc(SCORES[[0, 2, 3]], ignored[[0, 2, 3]]).item()
    # class 0: no hit of 1 pixel; class 1: 1 hit, 2 predicted; class 2: 1 hit; nobody has or predicts class 3
    four = torch.cat([SCORES, torch.zeros(4, 1)], dim=1)
    assert mean_iou(four, ignored).item() == mean_iou(SCORES, ignored).item() == (0 + 1 / 2 + 1) / 3
    assert math.isnan(accuracy(SCORES, torch.full((4,), -100)).item())


@pytest.mark.parametrize("metric", [accuracy, weighted_f1, auroc, mean_iou])
@pytest.mark.parametrize(
    ("preds", "target"),
    [
        (SCORES, torch.tensor([[0, 1, 1, 0]] * 4)),  # several labels for a sample, others than classes
        (SCORES, torch.tensor([[0, 1, 1]] * 4)),  # several labels for a sample, as many as classes
        (SCORES, torch.tensor([0.5, 1.0, 0.0, 2.0])),  # numbers to predict
        (SCORES, torch.tensor([0, 1, 2, 3])),  # a class too many
        (SCORES, torch.tensor([0, 1, 2, -1])),
        (SCORES, torch.tensor([0, 1, 2])),
        (SCORES[:, 0], torch.tensor([0, 1, 2, 0])),  # one logit for three classes
        (SCORES.argmax(1), CLASSES),  # no scores
        (CLASSES % 2, CLASSES % 2),  # no scores either, in the range of classes
        (SCORES, 0.3 + 0.3 * torch.nn.functional.one_hot(CLASSES, 3)),  # shares that add up to 1.2
        (SCORES, 2.0 * torch.nn.functional.one_hot(CLASSES, 3) - 1 / 3),  # shares below 0
        (SCORES, CLASSES[:0]),
        (torch.zeros(4, 5, 5), torch.zeros(4, 5, 5, dtype=torch.long)),  # masks of images without their channel
    ],
)
def test_predictions_and_targets_that_do_not_fit(metric: Callable[..., Tensor], preds: Tensor, target: Tensor) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"shape {tuple(preds.shape)} and targets of shape {tuple(target.shape)}")
    ):
        metric(preds, target)


def test_weighted_f1_of_classes_without_samples_or_predictions() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    # class 0: 1 hit, 1 predicted, 2 samples: 2/3; class 1 has no samples, classes 2 and 3 nothing at all
    assert weighted_f1(scores, torch.tensor([0, 0])).item() == pytest.approx(2 / 3)
    assert weighted_f1(scores, torch.tensor([2, 3])).item() == 0.0
    assert math.isnan(weighted_f1(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).item())


def test_auroc_counts_ties_half() -> None:
    # pairs: 0.8 > 0.4, 0.8 > 0.1, 0.4 = 0.4, 0.4 > 0.1
    assert auroc(two_class([0.8, 0.4, 0.4, 0.1]), torch.tensor([1, 1, 0, 0])).item() == pytest.approx(3.5 / 4)


def test_auroc_tells_very_sure_samples_apart() -> None:
    # all of these have probability 1 in float64
    assert auroc(two_class([100.0, 200.0, 150.0]), torch.tensor([0, 1, 0])).item() == 1.0
    # the difference of two scores is no float32
    assert auroc(torch.tensor([[1e8, 2.0], [1e8, 1.0]]), torch.tensor([1, 0])).item() == 1.0


@pytest.mark.long
@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_auroc_is_scikit_learns(average: str) -> None:
    from sklearn.metrics import roc_auc_score

    generator = torch.Generator().manual_seed(1)
    scores, target = torch.randn(300, 4, generator=generator), torch.randint(0, 4, (300,), generator=generator)
    probabilities = torch.softmax(scores.double(), 1).numpy()
    expected = roc_auc_score(target, probabilities, multi_class="ovr", average=average)
    assert auroc(scores, target, average).item() == pytest.approx(expected, abs=1e-9)  # type: ignore[arg-type]


def test_auroc_averages_over_the_classes_that_occur() -> None:
    scores = torch.tensor([[3.0, 0.0, 0.0], [1.0, 9.0, 0.0], [0.0, 0.0, 2.0], [2.0, 0.0, 0.0]])
    target = torch.tensor([0, 0, 2, 2])
    # log-odds of class 0: 2.3, -8.0, -2.1, 1.3: 2 of 4 pairs; of class 2: -3.0, -9.0, 1.3, -2.1: all 4. No class 1.
    assert auroc(scores, target).item() == pytest.approx((2 / 4 + 1) / 2)
    # with three samples of class 0: 2 of 3 pairs, and all 3
    target = torch.tensor([0, 0, 2, 0])
    assert auroc(scores, target).item() == pytest.approx((2 / 3 + 1) / 2)
    metric = metrics.OneVsRestAUROC("weighted", one_class=0.25)
    assert metric(scores, target).item() == auroc(scores, target, "weighted").item() == (3 * 2 / 3 + 1) / 4
    assert metric(scores[:2], target[:2]).item() == 0.25
    for make in (metrics.OneVsRestAUROC, lambda *options: auroc(scores, target, *options)):
        with pytest.raises(ValueError, match=r"`average` must be one of 'macro', 'weighted', got 'micro'"):
            make("micro")
        with pytest.raises(TypeError, match=r"`one_class` must be a number, .*got 'none'"):
            make("macro", "none")


@pytest.mark.parametrize("labels", [[1, 1, 1], []])
def test_auroc_of_one_class_is_nan_or_the_value_asked_for(labels: list[int]) -> None:
    scores, target = torch.zeros(len(labels), 2), torch.tensor(labels, dtype=torch.long)
    assert math.isnan(auroc(scores, target).item())
    assert auroc(scores, target, one_class=0.1).item() == 0.1
    assert math.isnan(auroc(two_class([0.1, math.nan]), torch.tensor([0, 1]), one_class=0.0).item())


def test_the_metric_object_pools_batches_and_resets() -> None:
    metric = metrics.OneVsRestAUROC()
    # each batch alone would be 1
    metric.update(two_class([0.8, 0.4]), torch.tensor([1, 0]))
    metric.update(two_class([0.3, 0.1]), torch.tensor([1, 0]))
    assert metric.compute().item() == pytest.approx(3 / 4)
    metric.reset()
    metric.update(two_class([0.8, 0.4]).double(), torch.tensor([1, 0]))
    assert metric.compute().item() == 1.0
    # Some devices have no other type.
    assert metric.compute().dtype == torch.float32


class Echo(Classifier):
    """Logits are the inputs themselves."""

    def __init__(self) -> None:
        super().__init__(2, lr=0.1, metrics=("acc", "f1", "auroc"))

    def forward(self, x: Tensor) -> Tensor:
        return x


CLIENTS = [
    (two_class([0.8, 0.4, 0.4, 0.1]), torch.tensor([1, 1, 0, 0])),  # F1: all predicted 1: (0 + 2/3) / 2
    (two_class([0.2, 0.3]), torch.tensor([1, 1])),  # one class only; F1 1
]


def test_metrics_by_client_and_over_all_samples() -> None:
    f1, area = ClientMetrics(weighted_f1, name="f1"), ClientMetrics(auroc, name="auroc")
    filled = ClientMetrics(partial(auroc, one_class=0.0), name="filled")
    data = TensorDataModule(clients=CLIENTS, val=CLIENTS, eval_batch_size=3)
    [logged] = quiet_trainer(callbacks=[f1, area, filled]).validate(Echo(), datamodule=data, verbose=False)
    assert f1.values["val"] == {0: pytest.approx(1 / 3), 1: 1.0}
    assert logged["val_f1_clients"] == pytest.approx(2 / 3)
    # over all six samples class 1 has 4 of 6 predictions right: F1 8/10, weight 4/6
    assert logged["val_f1"] == pytest.approx(0.8 * 4 / 6)
    # positives 0.8, 0.4, 0.2, 0.3 against negatives 0.4, 0.1: 2 + 1.5 + 1 + 1 of 8
    assert logged["val_auroc"] == pytest.approx(5.5 / 8)
    # the client of one class is left out, but listed, or may count as zero
    assert logged["val_auroc_clients"] == pytest.approx(7 / 8)
    assert logged["val_filled_clients"] == pytest.approx((7 / 8 + 0) / 2)
    assert np.isnan(area.values["val"][1])


def test_the_concordance_index_counts_pairs_whose_order_is_known() -> None:
    # the first comes before all others; the third before the second, which is censored at the same time, and the fourth
    target = torch.tensor([[1.0, 1.0], [0.0, 2.0], [1.0, 2.0], [1.0, 3.0]])
    risk = torch.tensor([3.0, 1.0, 1.0, 2.0])
    assert float(c_index(risk, target)) == 3.5 / 5
    assert float(c_index(risk[:, None], target)) == 3.5 / 5
    assert math.isnan(c_index(risk, target * torch.tensor([0.0, 1.0])))
    metric = metrics.ConcordanceIndex()
    metric.update(risk[:1], target[:1])
    metric.update(risk[1:], target[1:])
    assert float(metric.compute()) == pytest.approx(0.7)


def test_names_of_metrics_say_whether_larger_values_are_better() -> None:
    better = {"val_acc": True, "Test/AUROC": True, "val_dice_loss": False, "val_acc_clients_std": False, "accuse": None}
    assert {name: metrics.larger_is_better(name) for name in better} == better
    found = {name: [metrics.suitable_mode(name, mode) for mode in ("max", "min")] for name in ("acc", "loss", "accuse")}
    assert found == {"acc": [None, "max"], "loss": ["min", None], "accuse": [None, None]}
