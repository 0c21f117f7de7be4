"""The module as users see it between rounds; inside a round it is each client's in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.state_vector import StateVector
from fl_lightning.functional import tensors_by_name
from fl_lightning.parts.run import Run


class ShownModule:
    """The module's weights between rounds, and its metric objects; see :class:`~fl_lightning.parts.kept.Kept`.

    Args:
        vector: The module's federated state.
        run: The fit of the algorithm, which knows the model that the module holds between rounds.
    """

    def __init__(self, vector: StateVector, run: Run) -> None:
        self._vector = vector
        self._run = run
        saved = vector.module.state_dict(keep_vars=True)
        #: Federated tensors that the module's ``state_dict`` leaves out.
        self._unsaved = [name for name in vector.layout.names if name not in saved]

    def keep(self) -> None:
        """Make the module's present state the boundary's."""
        self._kept_metrics: dict[str, dict[str, Any]] = {}
        for path, part in self._vector.module.named_modules():
            if isinstance(part, Metric):
                self._kept_metrics[path] = part.state_dict()
        self._kept_unsaved: dict[str, Tensor] = {}
        if self._unsaved:
            held = dict(zip(self._vector.layout.names, self._vector.tensors(), strict=True))
            for name in self._unsaved:
                self._kept_unsaved[name] = held[name].detach().cpu().clone()

    def put_back(self) -> None:
        """Give the module the boundary's weights and metrics."""
        self._vector.write(self._run.kept_shown)
        for path, state in self._kept_metrics.items():
            self._vector.module.get_submodule(path).load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return what the module's own ``state_dict`` leaves out of the boundary's state."""
        return {"buffers": self._kept_unsaved}

    def of_boundary(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """Return the module's ``state_dict``, made just now, with the boundary's weights and metrics."""
        metrics: dict[str, Any] = {}
        for path, state in self._kept_metrics.items():
            for name, value in state.items():
                metrics[f"{path}.{name}"] = value
        return self._vector.with_values({**state_dict, **metrics}, self._run.kept_shown)


def load_unsaved(module: Any, tensors: Mapping[str, Tensor]) -> None:
    """Give a module the tensors that its ``state_dict`` leaves out, as :meth:`ShownModule.state_dict` returned them."""
    held = tensors_by_name(module)
    for name, values in tensors.items():
        held[name].detach().copy_(values)
