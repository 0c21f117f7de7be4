"""Cox regression: the risk of an event, from times of which some are censored."""

from __future__ import annotations

from typing import Literal

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from fl_lightning.metrics import ConcordanceIndex
from fl_lightning.settings import Count, NotNegative, check_arguments


class CoxRegression(L.LightningModule):
    """A linear model of the logarithm of the risk, trained by Cox's partial likelihood.

    A batch is ``(x, y)``: x has shape (n, in_features), y shape (n, 2) with the event (1, or 0 if censored) and the
    time. The risk set of a sample are the samples of its batch with the same or a later time, so that the loss is no
    mean over samples. ``test_cindex`` is the concordance index over all samples of the set, and so is ``val_cindex``;
    for that of each client give ``ClientMetrics(c_index, "cindex")``.

    Args:
        in_features: Number of features, 39 in Fed-TCGA-BRCA.
        lr: Learning rate.
        optimizer: ``"sgd"`` or ``"adam"``.

    Example:
        >>> import torch
        >>> CoxRegression(in_features=5)(torch.zeros(2, 5)).shape
        torch.Size([2])
    """

    def __init__(
        self, in_features: Count = 39, lr: NotNegative = 0.1, optimizer: Literal["sgd", "adam"] = "sgd"
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_arguments(self, self.hparams)
        self.lr = lr
        self.optimizer_name = optimizer
        self.linear = nn.Linear(in_features, 1)
        self.val_metrics = nn.ModuleDict({"cindex": ConcordanceIndex()})
        self.test_metrics = nn.ModuleDict({"cindex": ConcordanceIndex()})

    def forward(self, x: Tensor) -> Tensor:
        """Return log-risks, shape (n,)."""
        risk: Tensor = self.linear(x).squeeze(1)
        return risk

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = cox_loss(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(y))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return ``{"preds": log-risks, "target": y}``."""
        return self._evaluate(batch, "val", self.val_metrics["cindex"])

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return ``{"preds": log-risks, "target": y}``."""
        return self._evaluate(batch, "test", self.test_metrics["cindex"])

    def configure_optimizers(self) -> Optimizer:
        """Return SGD or Adam."""
        optimizer = Adam if self.optimizer_name == "adam" else SGD
        return optimizer(self.parameters(), lr=self.lr)

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str, metric: nn.Module) -> dict[str, Tensor]:
        x, y = batch
        risk = self(x)
        metric.update(risk, y)  # type: ignore[operator]
        self.log(f"{stage}_loss", cox_loss(risk, y), batch_size=len(y))
        self.log(f"{stage}_cindex", metric)  # type: ignore[arg-type]
        return {"preds": risk, "target": y}


def cox_loss(risk: Tensor, target: Tensor) -> Tensor:
    """Return Cox's negative partial log-likelihood, divided by the number of samples (as in FLamby).

    ``1/n sum_i E_i log sum_{j: T_j >= T_i} exp(r_j - r_i)``. Among equal times, a later sample of the batch has the
    earlier ones in its risk set, but not the other way round.

    Args:
        risk: Log-risks r, shape (n,).
        target: Events E and times T, shape (n, 2).
    """
    order = target[:, 1].argsort(descending=True, stable=True)
    risk = risk[order]
    event = target[order, 0]
    # A row has the differences from the samples in a sample's risk set: those up to the diagonal.
    differences = risk - risk.unsqueeze(1)
    is_later = torch.ones_like(differences).triu(1).bool()
    log_sums = differences.masked_fill(is_later, -torch.inf).logsumexp(dim=1)
    return (log_sums * event).mean()
