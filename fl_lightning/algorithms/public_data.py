"""FedDF and FedMD: distillation on public data, of one model at the server, or of clients' own models."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.distilled import EnsembleDistillation
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchanges.personal import PersonalParameters
from fl_lightning.parts.schedules.consensus import PublicConsensus
from fl_lightning.settings import Count, Scheduled


@dataclass(eq=False, repr=False)
class FedDF(AggregationCallback):
    """FedDF (Lin et al. 2020; eq. (95), (96)): the mean of the clients' models learns their mean logits on public data.

    The learning rate falls along a half cosine in each round. The paper ends a round's steps early by a validation set;
    here their number is fixed.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        module: A module with the tensors of the trained one, such as that itself; ``forward`` returns logits.
        loader: A ``DataLoader`` of public batches: inputs, or a tuple or list whose first element they are.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        steps: N, steps of the server in a round.
        lr: Their first learning rate; a function of the round makes a schedule.
        optimizer: Class of their optimizer, which begins each round anew.
        weighting: ``"samples"`` weighs a client's model in the mean by its size n_k, ``"uniform"`` all alike. In the
            mean of logits all count alike.

    Raises:
        ValueError: If an argument is out of its range; see :class:`~fl_lightning.parts.EnsembleDistillation`.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> public = DataLoader(torch.randn(32, 4), batch_size=8, shuffle=True)
        >>> algorithm = FedDF(module, public, clients_per_round=2, steps=5)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    module: nn.Module
    loader: DataLoader[Any]
    clients_per_round: int | float | None = None
    _: KW_ONLY
    steps: Count = 1000
    lr: Scheduled = 0.001
    optimizer: Callable[..., Optimizer] = torch.optim.Adam
    weighting: Weighting = "samples"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"steps": 1000, "lr": 0.001, "weighting": "samples"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        distillation = EnsembleDistillation(
            self.module,
            self.loader,
            steps=self.steps,
            lr=self.lr,
            optimizer=self.optimizer,
            weighting=self.weighting,
        )
        return self.compose(aggregation=distillation)


@dataclass(eq=False, repr=False)
class FedMD(AggregationCallback):
    """FedMD (Li and Wang 2019; eq. (97), (98)): clients share nothing but class scores of public data.

    In each round the clients send their models' scores of some public batches, digest the mean by steps of their own,
    and train on their samples. In the paper models are trained on labelled public data first: train the module so
    before. Its clients' models may also have other shapes.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        module: A module with the tensors of the trained one, such as that itself; ``forward`` returns class scores.
        loader: A ``DataLoader`` of public batches: inputs, or a tuple or list whose first element they are.
        clients_per_round: Clients that train in a round: a float is the fraction C (here all), an int the number m.
        batches: Public batches in a round.
        digestions: How often a client goes through them.
        lr: Learning rate of digestion; a function of the round makes a schedule.
        optimizer: Class of its optimizer, which begins each round anew.

    Raises:
        ValueError: If an argument is out of its range; see :class:`~fl_lightning.parts.PublicConsensus`.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> public = DataLoader(torch.randn(32, 4), batch_size=8, shuffle=True)
        >>> algorithm = FedMD(module, public, batches=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    module: nn.Module
    loader: DataLoader[Any]
    clients_per_round: int | float | None = None
    _: KW_ONLY
    batches: Count = 10
    digestions: Count = 1
    lr: Scheduled = 0.001
    optimizer: Callable[..., Optimizer] = torch.optim.Adam

    usual_clients_per_round: ClassVar[float | None] = 1.0

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        kept = PersonalParameters("*")
        consensus = PublicConsensus(
            self.module,
            self.loader,
            kept,
            batches=self.batches,
            digestions=self.digestions,
            lr=self.lr,
            optimizer=self.optimizer,
        )
        return self.compose(schedule=consensus, exchange=kept)
