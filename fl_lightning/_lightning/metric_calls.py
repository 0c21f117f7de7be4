"""One client's call of a metric object, which is made when the stack in which the client trained has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.recording import MetricCall, TensorPlace

AnyMetric = Metric | MetricCollection


class ClientCall(NamedTuple):
    """One client's call of a metric object: a row of a call of several clients.

    Attributes:
        call: The call of several clients.
        tensors: Their tensors, shape ``(K, ...)`` each.
        row: The client's.
    """

    call: MetricCall
    tensors: Sequence[Tensor]
    row: int

    def leaves(self) -> list[Any]:
        """Return the client's arguments, flattened."""
        return [self._own(leaf) if isinstance(leaf, TensorPlace) else leaf for leaf in self.call.leaves]

    def _own(self, leaf: TensorPlace) -> Any:
        value = self.tensors[leaf.place][self.row]
        return value if leaf.number is None else leaf.number(value.item())

    def arguments(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the client's arguments."""
        args, kwargs = pytree.tree_unflatten(self.leaves(), self.call.spec)
        return args, kwargs

    def make(self) -> Any:
        """Make the call, and return what it returns."""
        args, kwargs = self.arguments()
        return getattr(self.call.metric, self.call.method)(*args, **kwargs)

    def batch_value(self, metric: Metric) -> Any:
        """Return the value of this call's batch alone, of the metric object or of one in the collection called."""
        args, kwargs = self.arguments()
        alone = deepcopy(metric, without_graphs(metric))
        for own in alone.modules():
            if isinstance(own, Metric):
                own._to_sync = False  # other processes train other clients, and do not compute now
        alone.reset()
        alone.update(*args, **(metric._filter_kwargs(**kwargs)))
        return alone.compute()


def parts(metric: AnyMetric) -> Iterable[Metric]:
    """Return the metric objects of a collection; a single one in a list."""
    return [metric] if isinstance(metric, Metric) else metric.values(copy_state=False)


def without_graphs(module: nn.Module) -> dict[int, Tensor]:
    """Return detached copies of what metric objects hold with a graph, by the tensors' ids: a memo of ``deepcopy``."""
    held = pytree.tree_leaves([vars(metric) for metric in module.modules() if isinstance(metric, Metric)])
    return {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and value.grad_fn}
