"""Keeps the states of metric objects that are saved with the module, as they are when a round begins."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchmetrics import Metric

from fl_lightning._lightning.metric_replay import metric_states, restore_metric_states


class SavedMetrics:
    """Keeps what training changes in a module's ``state_dict`` beside its federated state: saved states of metrics.

    These are states of ``metric.persistent(True)``. Every other tensor that is not federated must be constant.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._saved = module, dict[str, Any]()
        for path, part in module.named_modules(remove_duplicate=False):
            if isinstance(part, Metric):
                self._saved |= part.state_dict(prefix=f"{path}.")  # of copies
        self._metrics = metric_states(module) if self._saved else {}

    def put_back(self) -> None:
        """Put the metrics back to the round's beginning."""
        restore_metric_states(self._module, self._metrics)

    def patched(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the module's ``state_dict`` with the values of the round's beginning."""
        return {name: self._saved.get(name, value) for name, value in state_dict.items()}
