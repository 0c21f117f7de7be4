"""Names of metrics and numbers, as readers see them."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ABBREVIATIONS = ("auroc", "auc", "auprc", "iou", "mae", "mape", "mse", "nll", "nrmse", "rmse")
_NAMES = {"acc": "accuracy", "f1": "F1", "r2": "R²"} | {name: name.upper() for name in _ABBREVIATIONS}
_STAGES = {"val": "validation", "test": "test", "train": "training"}
_SHARES = {"acc", "accuracy", "f1", "auroc", "auc", "precision", "recall"}
#: Lightning's ending for means over an epoch of what is also logged for batches.
_EPOCH = "_epoch"
_ENDS = {
    "_clients": " (clients)",
    "_clients_pooled": " (all clients' samples)",
    "_personal": " (clients' own models)",
    "_clients_weighted": " (clients, by their samples)",
    "_clients_lowest10": ", lowest tenth of clients",
    "_clients_std": ", sd of clients",
    "_clients_min": ", smallest of clients",
    "_clients_max": ", largest of clients",
}
#: A smaller spread is one of rounding alone.
_ROUNDING = 1e-12


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
    stage, _, rest = column.partition("_")
    name = rest if stage in _STAGES and rest else column
    # A metric may be called "_epoch".
    name = name.removesuffix(_EPOCH) or name
    for end in _ENDS:
        if name.endswith(end):
            return name.removesuffix(end), end
    return name, ""


@dataclass(frozen=True)
class Scale:
    """How the numbers of a metric are written.

    Attributes:
        percent: Whether they are shares of 1, written in per cent.
        largest: Size of the largest one; all of them have the same form.
    """

    percent: bool
    largest: float

    @property
    def factor(self) -> int:
        """What numbers are multiplied by."""
        return 100 if self.percent else 1

    def text(self, value: float, spread: float = math.nan, sign: bool = False) -> str:
        """Return a number as a string; the empty string if it is not finite.

        Shares have two decimals, other numbers four, large ones fewer; very small and very large ones are
        powers of ten.

        Args:
            value: The number.
            spread: Its spread; a small one asks for more decimals.
            sign: Whether a positive number has a sign.
        """
        value *= self.factor
        spread *= self.factor
        largest = self.factor * self.largest
        if not math.isfinite(value):
            return ""
        if 0 < largest < 0.01 or abs(value) >= 1e9:
            text = f"{value:+.3e}" if value else "0"
        else:
            if self.percent and not 0 < largest < 1:
                usual = 2
            elif largest < 100:
                usual = 4
            else:
                usual = max(0, 5 - math.floor(math.log10(largest)))
            text = signed(value, _decimals(usual, spread))
        return text if sign else text.removeprefix("+")


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign; zero has none, and what is not finite is the empty string."""
    if not math.isfinite(value):
        return ""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def p_text(p: float) -> str:
    """Return a p-value as a string; the empty string if it is NaN."""
    if math.isnan(p):
        return ""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _decimals(usual: int, spread: float) -> int:
    """Return how many decimals show a spread: the usual number, or two digits of one that is below its last decimal."""
    if _ROUNDING < spread < 10.0**-usual:
        return 1 - math.floor(math.log10(spread))
    return usual
