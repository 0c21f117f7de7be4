"""Personal models: what each client keeps, or trains, for itself.

``docs/personalisation.md`` says which model is evaluated on whose data.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.client_optimizers import OptimizerStates
from fl_lightning.parts.exchanges.personal import PersonalParameters
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.objectives.frozen import Frozen
from fl_lightning.parts.objectives.several_points import MetaLearning, ModelMixture, MoreauEnvelope
from fl_lightning.parts.schedules.clusters import Clusters
from fl_lightning.parts.schedules.own_models import AdaptiveStart, FineTuning, ProximalModels
from fl_lightning.parts.schedules.personal_first import PersonalFirst
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import Count, NotNegative, Positive, Scheduled, ScheduledWeight


@dataclass(eq=False, repr=False)
class Local(AggregationCallback):
    """Every client trains alone, from round to round: the baseline of personal models.

    Its optimizer goes on from round to round, too, as in a training without rounds.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (here all), an int the number m.
        optimizer_state: As for :class:`AggregationCallback`, with another default.

    Example:
        >>> algorithm = Local()
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    optimizer_state: OptimizerStates = "kept"

    usual_clients_per_round: ClassVar[float | None] = 1.0

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(exchange=PersonalParameters("*"))


@dataclass(eq=False, repr=False)
class FedAvgFineTuned(AggregationCallback):
    """FedAvg, after which each client fine-tunes the server's model on its own data (Cheng et al. 2021).

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        every: Number of rounds between two fine-tunings of all clients; the fit's last round has one, too.
        fine_tune_epochs: Local epochs of fine-tuning (or steps, with ``local_steps``).

    Example:
        >>> algorithm = FedAvgFineTuned(2, every=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    every: Count = 10
    fine_tune_epochs: Count = 1

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(schedule=FineTuning(every=self.every, epochs=self.fine_tune_epochs))


@dataclass(eq=False, repr=False)
class _Personal(AggregationCallback):
    """Some parameters are each client's own."""

    pattern: Patterns
    clients_per_round: int | float | None = None

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(exchange=PersonalParameters(self.pattern))


@dataclass(eq=False, repr=False)
class FedPer(_Personal):
    """FedPer (Arivazhagan et al. 2019): the last layers are each client's own, the others are averaged.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        pattern: The personal layers: names of submodules or parameters, or patterns of names.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.

    Example:
        >>> algorithm = FedPer("head", clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """


@dataclass(eq=False, repr=False)
class LGFedAvg(_Personal):
    """LG-FedAvg (Liang et al. 2020): the first layers are each client's own, the last ones are averaged.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        pattern: The personal layers: names of submodules or parameters, or patterns of names.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.

    Example:
        >>> algorithm = LGFedAvg("body", clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """


@dataclass(eq=False)
class _NormalisationLayers(PersonalParameters):
    """Keeps the normalisation layers of torch on each client, as far as they have tensors that travel otherwise."""

    pattern: Patterns = ()

    def setup(self, federation: Federation) -> None:
        """Choose the layers, and give every client the first model's values."""
        layers = federation.layout.normalisation
        self.pattern = [layer for layer in layers if federation.has_tensors_of(layer)]
        if not self.pattern:
            found = ", ".join(layers) or "none"
            raise ValueError(
                "FedBN without a `pattern` needs normalisation layers with parameters or statistics that travel "
                f"otherwise; the module's normalisation layers are: {found}. Name other layers by `FedBN(pattern)`."
            )
        super().setup(federation)


@dataclass(eq=False, repr=False)
class FedBN(AggregationCallback):
    """FedBN (Li et al. 2021): the normalisation layers are each client's own, with their buffers.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        pattern: The normalisation layers: names of submodules or parameters, or patterns of names. ``None`` finds
            those of torch: BatchNorm, LayerNorm, GroupNorm, InstanceNorm and RMSNorm.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.

    Raises:
        ValueError: When the fit begins, if ``pattern`` is ``None`` and the module has no such layer with tensors that
            are trained or that training changes.

    Example:
        >>> algorithm = FedBN(clients_per_round=2)  # finds the module's normalisation layers
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    pattern: Patterns | None = None
    clients_per_round: int | float | None = None

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        exchange = _NormalisationLayers() if self.pattern is None else PersonalParameters(self.pattern)
        return self.compose(exchange=exchange)


@dataclass(eq=False, repr=False)
class FedRep(_Personal):
    """FedRep (Collins et al. 2021): clients first train their own head on the shared body, then the body.

    Statistics of BatchNorm layers in the body move in the body's phase alone: what the head's phase changes of them is
    dropped.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        pattern: The head: names of submodules or parameters, or patterns of names.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        head_epochs: Local epochs of the head (or steps, with ``local_steps``); ``local_epochs`` are those of the body.

    Example:
        >>> algorithm = FedRep("head", clients_per_round=2, head_epochs=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    pattern: Patterns
    clients_per_round: int | float | None = None
    _: KW_ONLY
    head_epochs: Count = 10

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        head = PersonalParameters(self.pattern)
        schedule = PersonalFirst(personal_parameters=head, epochs=self.head_epochs)
        return self.compose(exchange=head, schedule=schedule, objective=Frozen(self.pattern))


@dataclass(eq=False, repr=False)
class FedBABU(AggregationCallback):
    """FedBABU (Oh et al. 2022): the head stays as it is while the body is learnt, and is fine-tuned afterwards.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        pattern: The head: names of submodules or parameters, or patterns of names.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        every: Number of rounds between two fine-tunings of all clients; the fit's last round has one, too.
        fine_tune_epochs: Local epochs of fine-tuning (or steps, with ``local_steps``).

    Example:
        >>> algorithm = FedBABU("head", clients_per_round=2, every=2, fine_tune_epochs=1)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    pattern: Patterns
    clients_per_round: int | float | None = None
    _: KW_ONLY
    every: Count = 10
    fine_tune_epochs: Count = 5

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        schedule = FineTuning(every=self.every, epochs=self.fine_tune_epochs)
        return self.compose(schedule=schedule, objective=Frozen(self.pattern))


@dataclass(eq=False, repr=False)
class Ditto(AggregationCallback):
    """Ditto (Li et al. 2021): FedAvg, and beside it each client's own model, drawn to the server's.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        lam: Weight of ``lam/2 |v - w|^2``, at least 0; a function of the round makes a schedule.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        personal_epochs: Local epochs of the own model (or steps, with ``local_steps``); ``None``: as the server's.

    Example:
        >>> algorithm = Ditto(lam=0.5, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    lam: ScheduledWeight = 1.0
    clients_per_round: int | float | None = None
    _: KW_ONLY
    personal_epochs: Count | None = None

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(schedule=ProximalModels(lam=self.lam, epochs=self.personal_epochs))


@dataclass(eq=False, repr=False)
class PFedMe(AggregationCallback):
    """pFedMe (Dinh et al. 2020): the server learns the clients' Moreau envelopes, each client its minimiser.

    One local step is one of w: on one batch theta takes ``inner_steps`` steps, then w one towards it.

    Clients count by their samples; as in the paper alike with ``aggregation=WeightedMean("uniform")``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        lam: Weight of ``lam/2 |theta - w|^2``, greater than 0.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        inner_steps: K, steps of theta on each batch, by the module's optimizer.
        lr: eta, the learning rate of a client's w.
        server_lr: beta, by which the server moves to the clients' mean; a function of the round makes a schedule.

    Example:
        >>> algorithm = PFedMe(lam=15, inner_steps=3, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    lam: Positive = 15.0
    clients_per_round: int | float | None = None
    _: KW_ONLY
    inner_steps: Count = 5
    lr: Positive = 0.005
    server_lr: Scheduled = 1.0

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        objective = MoreauEnvelope(self.lam, self.inner_steps, self.lr)
        return self.compose(objective=objective, server_optimizer=Mixing(self.server_lr))


@dataclass(eq=False, repr=False)
class APFL(AggregationCallback):
    """APFL (Deng et al. 2020): each client learns a mixture of a model of its own and the server's.

    One local step is one of the own model and one of the server's, on the same batch.

    Clients count by their samples; as in the paper alike with ``aggregation=WeightedMean("uniform")``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        alpha: Share of the own model, in [0, 1].
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        alpha_lr: Learning rate of each client's alpha; 0 keeps it.

    Example:
        >>> algorithm = APFL(alpha=0.5, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    alpha: Annotated[float, "[0, 1]"] = 0.5
    clients_per_round: int | float | None = None
    _: KW_ONLY
    alpha_lr: NotNegative = 0.0

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(objective=ModelMixture(self.alpha, self.alpha_lr))


@dataclass(eq=False, repr=False)
class PerFedAvg(AggregationCallback):
    """Per-FedAvg (Fallah et al. 2020): the server learns the model that is best after one step on a client's data.

    One local step is one of w, on two batches; on three with ``gradient="hessian-free"``.

    Clients count by their samples; as in the paper alike with ``aggregation=WeightedMean("uniform")``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        alpha: Learning rate of that step.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        gradient: ``"first-order"``, or ``"hessian-free"`` with its difference of gradients.
        delta: Length of that difference, relative to the gradient.
        every: Number of rounds between two fine-tunings of all clients; the fit's last round has one, too.
        fine_tune_epochs: Local epochs of fine-tuning (or steps, with ``local_steps``). Its steps are those for which
            the model is learnt, ``w - alpha grad F_k(w)`` on a batch, not the module's optimizer's.

    Example:
        >>> algorithm = PerFedAvg(alpha=0.01, clients_per_round=2, every=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    alpha: Positive = 0.01
    clients_per_round: int | float | None = None
    _: KW_ONLY
    gradient: Literal["first-order", "hessian-free"] = "first-order"
    delta: Positive = 0.001
    every: Count = 10
    fine_tune_epochs: Count = 1

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        objective = MetaLearning(self.alpha, self.gradient, self.delta)
        schedule = FineTuning(every=self.every, epochs=self.fine_tune_epochs, lr=self.alpha)
        return self.compose(objective=objective, schedule=schedule)


@dataclass(eq=False, repr=False)
class FedALA(AggregationCallback):
    """FedALA (Zhang et al. 2023): clients start from a learnt mix of their last model and the server's.

    Steps of the mix are no local steps: nothing is counted or logged in ``share_epochs``.

    The mix is learnt for ``share_epochs`` on all of a client's samples in every round. The paper learns the first mix
    to convergence, and each on 80 % of the samples.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        mixed: The parameters that are mixed, the last layers in the paper: names of submodules or patterns.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        share_lr: Learning rate of the mix.
        share_epochs: Local epochs in which it is learnt (or steps, with ``local_steps``).

    Example:
        >>> algorithm = FedALA("head", clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    mixed: Patterns = "*"
    clients_per_round: int | float | None = None
    _: KW_ONLY
    share_lr: Positive = 1.0
    share_epochs: Count = 1

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(schedule=AdaptiveStart(mixed=self.mixed, lr=self.share_lr, epochs=self.share_epochs))


@dataclass(eq=False, repr=False)
class IFCA(AggregationCallback):
    """IFCA (Ghosh et al. 2020): several models, of which each client trains the one that fits its data best.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clusters: Number of models.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        spread: The first models differ: each tensor has normal noise of so many of its standard deviations.
        weighting: ``"samples"`` weighs a client by its size n_k, ``"uniform"`` gives all clients of a cluster the same
            weight, as in the paper.

    Example:
        >>> algorithm = IFCA(clusters=2, clients_per_round=4)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    clusters: Count
    clients_per_round: int | float | None = None
    _: KW_ONLY
    spread: Positive = 1.0
    weighting: Weighting = "samples"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "samples"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        schedule = Clusters(number=self.clusters, spread=self.spread)
        return self.compose(schedule=schedule, aggregation=WeightedMean(self.weighting))
