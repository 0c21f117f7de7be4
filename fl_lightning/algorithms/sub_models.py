"""HeteroFL and FjORD: weak clients train narrow models."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.holders import HolderMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchanges.sub_models import SubModels
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.objectives.held import HeldGradients, OrderedDropout
from fl_lightning.settings import Share


@dataclass(eq=False, repr=False)
class HeteroFL(AggregationCallback):
    """Weak clients train narrow models (Diao et al. 2021; eq. (91), (92), (94)): the leading units of hidden layers.

    What is saved is traffic; here a narrow model is computed as a whole one in which all else is 0. The paper's Scaler,
    static BatchNorm and masked cross-entropy are the module's.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        widths: Shares of the hidden units, in (0, 1]; client k has the k-th, from the first one again after the last.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        drawn: Whether each client of a round draws one of the widths instead (the paper's dynamic split).
        weighting: ``"uniform"`` as in the paper, or ``"samples"``.
        inputs: Layers whose inputs stay whole, as for :class:`~fl_lightning.parts.SubModels`; the first if ``None``.
        outputs: Layers whose outputs stay whole; the last if ``None``.
        hidden: Dimensions that shrink of tensors that are of no known layer, by the tensors' names.
        whole: Such tensors that stay whole.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if what a narrow model holds of a layer is
            not known.

    Example:
        >>> algorithm = HeteroFL(widths=[1.0, 0.5], clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    widths: Sequence[Share]
    clients_per_round: int | float | None = None
    _: KW_ONLY
    drawn: bool = False
    weighting: Weighting = "uniform"
    inputs: Patterns | None = None
    outputs: Patterns | None = None
    hidden: Mapping[str, int] | None = None
    whole: Patterns | None = None
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "uniform"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        held = SubModels(
            self.widths,
            drawn=self.drawn,
            inputs=self.inputs,
            outputs=self.outputs,
            hidden=self.hidden,
            whole=self.whole,
        )
        return self.compose(objective=HeldGradients(held), exchange=held, aggregation=HolderMean(held, self.weighting))


@dataclass(eq=False, repr=False)
class FjORD(AggregationCallback):
    """Clients train widths up to their own, one in each step (Horvath et al. 2021; eq. (91), (93), (94)).

    What is saved is traffic; here a narrow model is computed as a whole one in which all else is 0. The paper's
    self-distillation is left out. The module must have no BatchNorm that keeps statistics.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        widths: Shares of the hidden units, in (0, 1]; client k's largest is the k-th, from the first one again after
            the last. Each of its steps draws one of those that are not larger.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        weighting: ``"samples"`` as in the paper, or ``"uniform"``.
        inputs: As for :class:`HeteroFL`.
        outputs: As for :class:`HeteroFL`.
        whole: As for :class:`HeteroFL`.

    Raises:
        ValueError: As for :class:`HeteroFL`; when the fit begins, if the module has statistics of hidden units.

    Example:
        >>> algorithm = FjORD(widths=[1.0, 0.5], clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    widths: Sequence[Share]
    clients_per_round: int | float | None = None
    _: KW_ONLY
    weighting: Weighting = "samples"
    inputs: Patterns | None = None
    outputs: Patterns | None = None
    whole: Patterns | None = None
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "samples"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        held = SubModels(self.widths, inputs=self.inputs, outputs=self.outputs, whole=self.whole)
        return self.compose(objective=OrderedDropout(held), exchange=held, aggregation=HolderMean(held, self.weighting))
