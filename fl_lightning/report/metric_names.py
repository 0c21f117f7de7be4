"""Names and units of metrics, for readers."""

from __future__ import annotations

_NAMES = {"acc": "accuracy", "f1": "F1", "r2": "R²"} | {
    name: name.upper() for name in ("auroc", "auc", "auprc", "iou", "mae", "mape", "mse", "nll", "nrmse", "rmse")
}
_STAGES = {"val": "validation", "test": "test", "train": "training"}
_SHARES = {"acc", "accuracy", "f1", "auroc", "auc", "precision", "recall"}
_EPOCH = "_epoch"  # Lightning's ending for means over an epoch of what is also logged for batches
_ENDS = {
    "_clients": " (clients)",
    "_clients_std": ", sd of clients",
    "_clients_min": ", smallest of clients",
    "_clients_max": ", largest of clients",
}


def metric_name(column: str, stage: bool = False) -> str:
    """Return the name of a metric for readers, such as ``"accuracy (clients)"`` for ``"test_acc_clients"``.

    Args:
        column: The name in the logs.
        stage: Whether the name says if it is of training, validation or test.
    """
    first, _, rest = column.partition("_")
    if first not in _STAGES or not rest:
        return column
    base, end = _base(column)
    name = f"{_NAMES.get(base, base)}{_ENDS.get(end, '')}"
    return f"{_STAGES[first]} {name}" if stage else name


def is_share(column: str) -> bool:
    """Whether a metric is a share of 1, so that per cent are its unit."""
    return _base(column)[0] in _SHARES


def _base(column: str) -> tuple[str, str]:
    """Return the metric without its stage, and what its name says of clients."""
    stage, _, name = column.partition("_")
    name = name if stage in _STAGES and name else column
    name = name.removesuffix(_EPOCH) or name
    for end in sorted(_ENDS, key=len, reverse=True):
        if name.endswith(end):
            return name.removesuffix(end), end
    return name, ""
