"""Steps of a data module's set-up: checks of its parts, and noise and standardisation of its inputs."""

from __future__ import annotations

from torch import Tensor

from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.missing import Imputation, check_finite, fill_missing
from fl_lightning.data.source import Source
from fl_lightning.data.standardize import Standardization, standardize
from fl_lightning.partitioners.feature_noise import add_feature_noise
from fl_lightning.representation import short


def check_returned(datamodule: object, method: str, value: object, expected: type) -> None:
    """Raise ``TypeError`` unless a method that a user may override has returned the right kind of object."""
    if not isinstance(value, expected):
        hint = " Write `return Source(dataset, labels)`." if expected is Source else ""
        raise TypeError(
            f"`{method}` of {type(datamodule).__name__} must return a {expected.__name__}, got {short(value)}.{hint}"
        )


def check_training_clients(split: FederatedSplit) -> None:
    """Raise ``ValueError`` unless there are training clients and each has samples."""
    if not split.train:
        raise ValueError(
            "The split leaves no client for training. Use more clients, or smaller validation and test sets."
        )
    empty = [client for client, indices in split.train.items() if len(indices) == 0]
    if empty:
        raise ValueError(
            f"Client {empty[0]} has no training samples ({len(empty)} of {len(split.train)} training clients have "
            "none). Use fewer clients, a partitioner with a minimum size, or another seed."
        )


def prepare_inputs(
    x: Tensor,
    split: FederatedSplit,
    features: slice,
    feature_noise: float,
    seed: int,
    how: Standardization | None,
    impute: Imputation | None,
) -> Tensor:
    """Return the inputs of all samples filled up, with noise added and standardised, as far as each is asked for.

    Args:
        x: Inputs of all samples, shape (N, features, ...); not changed.
        split: Who holds which samples.
        features: The features that are changed; the others stay as they are.
        feature_noise: Standard deviation of the last client's noise; 0 for none.
        seed: Seed of the noise.
        how: How to standardise; ``None`` leaves that out.
        impute: How to fill NaN; ``None`` leaves that out.

    Raises:
        ValueError: If the inputs cannot be filled or standardised, or noise is asked for and there is one client.
    """
    if impute is not None:
        x = fill_missing(x, impute, split)
    if feature_noise:
        if split.partition.num_clients == 1:
            raise ValueError(
                f"`feature_noise={feature_noise}` has no effect: the first client has no noise, and there is no other. "
                "Leave it out, or use more clients."
            )
        x, numeric = x.clone(), (slice(None), features)[: x.dim()]
        x[numeric] = add_feature_noise(x[numeric], split.partition, feature_noise, seed)
    if how is not None:
        if x.is_floating_point() and x.dim() > 1:
            check_finite(x, split, features, f"standardize={how!r}")
        x = standardize(x, how, split.train, [split.val, split.test], features)
    return x
