"""Metrics of one client or of a whole evaluation set: accuracy's companions for unequal classes."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from fl_lightning.settings import check, is_number
from fl_lightning.words import short_repr

Average = Literal["macro", "weighted"]

#: Words in the names of metrics of which larger values are better, and of which smaller ones are.
_LARGER = {"acc", "accuracy", "auc", "auroc", "cindex", "f1", "precision", "recall", "iou", "dice", "bleu", "r2"}
_SMALLER = {"loss", "error", "err", "mae", "mape", "mse", "nll", "perplexity", "rmse", "std", "gap"}
#: The label that losses of torch leave out, the default of ``ignore_index``.
IGNORED = -100


# ---- scores and classes ----


def scores_and_classes(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores (N, C) and classes (N,), one row for each sample, pixel or token that has a label.

    Predictions are scores of samples (n, C), of sequences (n, T, C) or of images (n, C, H, W). In three dimensions the
    classes are the last one, in more the second one; if only the other place fits, it is taken. A single logit, (n,),
    (n, 1) or (n, 1, H, W), is the score of class 1, and that of class 0 is 0.

    Targets are whole numbers of any type, booleans too. They have the predictions' shape without the classes, or with 1
    in their place. Or they have the predictions' shape and are one-hot or soft; their class is then the largest. Labels
    of -100, torch's ``ignore_index``, are left out.

    Args:
        preds: Scores, such as logits.
        target: Targets.

    Raises:
        ValueError: If the two do not fit, as with numbers to predict, several labels for a sample or classes beyond
            C-1.
    """
    rows = _rows(preds.reshape(-1, 1) if preds.ndim < 2 else preds, target)
    if rows is None:
        raise _misfit(preds, target)
    scores, classes = rows
    is_whole = not classes.is_floating_point() or torch.equal(classes, classes.round())
    if not is_whole:
        raise _misfit(preds, target)
    classes = classes.long()
    if scores.shape[1] == 1:
        # Whole numbers in one column are classes, or numbers to predict, but not logits.
        if not scores.is_floating_point():
            raise _misfit(preds, target)
        scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
    is_labelled = classes != IGNORED
    if not is_labelled.all():
        scores = scores[is_labelled]
        classes = classes[is_labelled]
    is_class = (classes >= 0) & (classes < scores.shape[1])
    if not is_class.all():
        raise _misfit(preds, target)
    return scores, classes


def _rows(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return scores (N, C) and classes (N,), ignored ones too; ``None`` if the two do not fit."""
    axes = (2, 1) if scores.ndim == 3 else (1, scores.ndim - 1)
    for axis in axes:
        classes = _classes(target, scores.shape, axis)
        if classes is not None:
            return scores.movedim(axis, -1).flatten(0, -2), classes.flatten()
    return None


def _classes(target: Tensor, shape: torch.Size, axis: int) -> Tensor | None:
    """Return the classes of targets of predictions whose classes lie along ``axis``; ``None`` if they do not fit."""
    before = shape[:axis]
    after = shape[axis + 1 :]
    if target.shape == (*before, *after):
        return target
    if target.shape == (*before, 1, *after):
        return target.squeeze(axis)
    if target.shape == shape and (target >= 0).all():
        is_one = (target.double().sum(axis) - 1).abs() < 1e-3
        if is_one.all():
            return target.argmax(axis)
    return None


def _misfit(preds: Tensor, target: Tensor) -> ValueError:
    found = f"{target.dtype}"
    if target.numel():
        found += f" from {target.min().item():g} to {target.max().item():g}"
    return ValueError(
        "Predictions must be scores of classes, such as (n, C), and targets whole numbers below C, such as (n,), got "
        f"predictions of shape {tuple(preds.shape)} and targets of shape {tuple(target.shape)}, {found}. Give "
        "`target=` of the data module if the targets are another element of a batch, or another metric, such as "
        '`ClientMetrics(metric=lambda preds, target: (preds - target).square().mean().sqrt(), name="rmse")`.'
    )


# ---- metrics ----


def accuracy(preds: Tensor, target: Tensor) -> Tensor:
    """Return the share of samples, pixels or tokens whose largest score is the target's.

    A single logit is of class 1 where it is greater than 0.

    Args:
        preds: Scores, shape (n, C), or others that :func:`scores_and_classes` takes.
        target: Classes, 0 to C-1, shape (n,), or others that it takes.

    Returns:
        A float64 scalar; NaN without samples.

    Raises:
        ValueError: If the two do not fit.
    """
    scores, classes = scores_and_classes(preds, target)
    return (scores.argmax(dim=1) == classes).double().mean()


def weighted_f1(preds: Tensor, target: Tensor) -> Tensor:
    """Return the F1 score of each class, averaged by the classes' numbers of samples (scikit-learn's "weighted").

    A class's F1 is 2 TP / (predictions of the class + samples of the class).

    Args:
        preds: Scores, shape (n, C), the largest of which is the prediction, or others as in :func:`accuracy`.
        target: Classes, 0 to C-1, shape (n,), or others as in :func:`accuracy`.

    Returns:
        A float64 scalar; NaN without samples.

    Raises:
        ValueError: If the two do not fit.
    """
    scores, classes = scores_and_classes(preds, target)
    hits, samples, predictions = _counts(scores, classes)
    # A class that neither occurs nor is predicted has weight 0.
    f1 = 2 * hits.double() / (samples + predictions).clamp(min=1)
    return (f1 * samples).sum() / samples.sum()


def mean_iou(preds: Tensor, target: Tensor) -> Tensor:
    """Return the intersection over union of each class, averaged over classes: the Jaccard index of a segmentation.

    A class's is TP / (predictions of the class + samples of the class - TP), over all pixels together. A class that
    neither occurs nor is predicted is left out.

    Args:
        preds: Scores, shape (n, C, H, W), the largest of which is the prediction, or others as in :func:`accuracy`.
        target: Classes, 0 to C-1, shape (n, H, W), or others as in :func:`accuracy`; -100 for pixels without one.

    Returns:
        A float64 scalar; NaN without pixels.

    Raises:
        ValueError: If the two do not fit.
    """
    scores, classes = scores_and_classes(preds, target)
    hits, samples, predictions = _counts(scores, classes)
    union = samples + predictions - hits
    return (hits.double() / union)[union > 0].mean()


def _counts(scores: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each class's true positives, samples and predictions, shape (C,)."""
    num_classes = scores.shape[1]
    predicted = scores.argmax(dim=1)
    hits = torch.bincount(classes[predicted == classes], minlength=num_classes)
    samples = torch.bincount(classes, minlength=num_classes)
    predictions = torch.bincount(predicted, minlength=num_classes)
    return hits, samples, predictions


def auroc(preds: Tensor, target: Tensor, average: Average = "macro", one_class: float = math.nan) -> Tensor:
    """Return the area under the ROC curve: one class against the rest, averaged over the classes in ``target``.

    Samples are ranked by the odds of the class, with ties counted half. With two classes that is the usual area under
    the curve of class 1.

    Args:
        preds: Logits or log-probabilities, shape (n, C), or others as in :func:`accuracy`.
        target: Classes, 0 to C-1, shape (n,), or others as in :func:`accuracy`.
        average: ``"macro"`` for the plain mean over classes, ``"weighted"`` for the mean by their numbers of samples.
        one_class: The result where the samples are all of one class, so that there is nothing to tell apart. NaN makes
            :class:`~fl_lightning.ClientMetrics` leave such a client out; 0 is what the code of Xue et al. 2021 scores.

    Returns:
        A float64 scalar on the CPU; NaN if a score is NaN.

    Raises:
        ValueError: If ``average`` is neither of the two, or predictions and targets do not fit.
    """
    check("`average`", average, Average)
    _check_one_class(one_class)
    scores, classes = scores_and_classes(preds.cpu(), target.cpu())
    scores = scores.double()
    present, samples = torch.unique(classes, return_counts=True)
    if len(present) < 2:
        return torch.tensor(one_class, dtype=torch.float64)
    area_of_classes = []
    for label in present.tolist():
        area_of_classes.append(_area(_log_odds(scores, label), classes == label))
    areas = torch.stack(area_of_classes)
    weights = torch.ones_like(areas) if average == "macro" else samples.double()
    return (areas * weights).sum() / weights.sum()


class _OverAllSamples(Metric):
    """A metric that keeps all predictions and targets until ``reset``."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("preds", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep predictions and targets, one row for each sample."""
        self.preds.append(preds.detach())
        self.target.append(target.detach())

    def compute(self) -> Tensor:
        """Return the metric of all samples kept, a float32 scalar."""
        preds = dim_zero_cat(self.preds)
        target = dim_zero_cat(self.target)
        return self.score(preds, target).to(device=preds.device, dtype=torch.float32)

    def score(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return the metric."""
        raise NotImplementedError


class OneVsRestAUROC(_OverAllSamples):
    """:func:`auroc` as a torchmetrics metric: ``update(preds, target)``, and ``compute()`` over all samples seen.

    Unlike that of torchmetrics, it does not count a class without samples as 0. It keeps all scores until ``reset``.

    Args:
        average: As in :func:`auroc`.
        one_class: As in :func:`auroc`.
        **kwargs: Arguments of ``torchmetrics.Metric``.

    Raises:
        ValueError: If ``average`` is unknown.
    """

    def __init__(self, average: Average = "macro", one_class: float = math.nan, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check("`average`", average, Average)
        _check_one_class(one_class)
        self.average = average
        self.one_class = one_class

    def score(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return the area under the curve."""
        return auroc(preds, target, self.average, self.one_class)


def c_index(preds: Tensor, target: Tensor) -> Tensor:
    """Return the concordance index: the share of comparable pairs of samples that the risks order rightly.

    A pair is comparable if the one sample had its event before the other one's event or censoring, or at the time of
    its censoring. Equal risks count half (Harrell et al. 1996, as in lifelines). It takes memory for n^2 numbers.

    Args:
        preds: Risks, or their logarithms, shape (n,) or (n, 1).
        target: Events (1, or 0 if censored) and times, shape (n, 2).

    Returns:
        A float64 scalar on the CPU; NaN if no pair is comparable.
    """
    risk = preds.cpu().flatten()
    event, time = target.cpu().unbind(1)
    # Entry (i, j) of each matrix compares sample i, which had its event first, with sample j.
    is_before = time[:, None] < time
    is_at_censoring = (time[:, None] == time) & (event == 0)
    is_comparable = (event[:, None] == 1) & (is_before | is_at_censoring)
    ordered = (risk[:, None] > risk).double() + 0.5 * (risk[:, None] == risk)
    return ordered[is_comparable].mean()


class ConcordanceIndex(_OverAllSamples):
    """:func:`c_index` as a torchmetrics metric, over all samples seen; it is not a mean over batches.

    Args:
        **kwargs: Arguments of ``torchmetrics.Metric``.
    """

    def score(self, preds: Tensor, target: Tensor) -> Tensor:
        """Return the index."""
        return c_index(preds, target)


def _check_one_class(one_class: object) -> None:
    if not is_number(one_class):
        raise TypeError(
            f"`one_class` must be a number, the score of samples of one class, got {short_repr(one_class)}."
        )


def _log_odds(preds: Tensor, label: int) -> Tensor:
    """Return log(p / (1 - p)) of a class, which unlike p itself does not round to one value for all sure samples."""
    others = torch.cat([preds[:, :label], preds[:, label + 1 :]], dim=1)
    return preds[:, label] - others.logsumexp(dim=1)


def _area(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the share of (positive, negative) pairs that the scores order rightly, by the ranks of the positives."""
    if scores.isnan().any():
        return scores.new_tensor(math.nan)
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # Ties share their mean rank.
    last_rank = counts.cumsum(0).double()
    mean_rank = last_rank - (counts - 1) / 2
    ranks = mean_rank[place]
    num_positive = positive.sum().double()
    num_negative = len(scores) - num_positive
    ordered: Tensor = ranks[positive].sum() - num_positive * (num_positive + 1) / 2
    return ordered / (num_positive * num_negative)


# ---- names of metrics ----


def larger_is_better(name: str) -> bool | None:
    """Return whether larger values of a metric are better; ``None`` if its name does not say.

    Args:
        name: The name in the logs. One word for small values decides: ``"val_dice_loss"`` is better when it is smaller,
            and so is ``"val_acc_clients_std"``.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & _SMALLER:
        return False
    if words & _LARGER:
        return True
    return None


def suitable_mode(name: str, mode: str) -> str | None:
    """Return the mode that a metric's name asks for if ``mode`` contradicts it; ``None`` if it does not.

    Args:
        name: The name in the logs.
        mode: ``"max"`` or ``"min"``.
    """
    larger = larger_is_better(name)
    if larger is None:
        return None
    suitable = "max" if larger else "min"
    return None if mode == suitable else suitable
