"""Notes the batches and logged values of a client that trains alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.data.tensor_bytes import version_of


@dataclass
class Witness:
    """The batches that one client trained on, and the values that it logged.

    Attributes:
        batches: Its batches, as the module took them.
        states: The states of the global generators before it was trained on each.
        logged: For each hook and name the number of logged values, and their sum.
        metrics: The states of metric objects at its end.
        lost: Number of losses that were not a number.
    """

    batches: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    logged: dict[tuple[str | None, str], tuple[int, float]] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: int = 0
    _versions: list[tuple[Tensor, int]] = field(default_factory=list, init=False, repr=False)

    def note_batch(self, batch: Any, states: Any) -> None:
        """Note a batch, before it is trained on, and the states of the global generators."""
        self.batches.append(batch)
        self.states.append(states)

        def note(tensor: Tensor) -> Tensor:
            self._versions.append((tensor, version_of(tensor)))
            return tensor

        apply_to_collection(batch, Tensor, note)

    @property
    def batches_changed(self) -> bool:
        """Whether training has changed a batch in place."""
        return any(version_of(tensor) != version for tensor, version in self._versions)

    def note_loss(self, outputs: Mapping[str, Any] | None) -> None:
        """Note what training on a batch returned."""
        loss = (outputs or {}).get("loss")
        self.lost += int(isinstance(loss, Tensor) and bool(loss.isnan().any()))

    def note_value(self, fx: str | None, name: str, value: Any) -> None:
        """Note a number that is logged; metric objects are looked at as such."""
        if not isinstance(value, Metric):
            count, total = self.logged.get((fx, name), (0, 0.0))
            self.logged[fx, name] = count + 1, total + float(value.detach() if isinstance(value, Tensor) else value)
