"""Ends fits of a search that are worse than earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from fl_lightning.experiment.callbacks import CurveRecorder
from fl_lightning.experiment.files import read_csv
from fl_lightning.experiment.plan import rounds_of
from fl_lightning.experiment.search import import_optuna

_FACTOR = 3  # of the rounds from one look to the next; a third of the fits goes on
_LOOKS = 3  # the last at the end, so that the first is after a ninth of the rounds


class Pruning(Callback):
    """Ends a fit by one of Optuna's pruners, which compares it with the same fit of earlier points.

    These have all ended before, and their curves are read from their files. So whether a fit is pruned does not depend
    on which other fits run at the same time.

    Args:
        config: The configuration of the cell; its entry ``pruning`` has the kind of the ``pruner``, the ``number`` of
            the point and the ids of the ``earlier`` fits.
        cells: Folder with the folders of all cells.
        curve: The callback that keeps the curve of the fit.

    Attributes:
        score: The validation score with which the fit was ended; ``None`` if it was not.
    """

    def __init__(self, config: Mapping[str, Any], cells: Path, curve: CurveRecorder) -> None:
        self.monitor, self.curve = config["monitor"], curve
        self.score: float | None = None
        self._seen = 0
        optuna = import_optuna("`pruner`")
        order, rounds = config["pruning"], rounds_of(config["trainer"]) or 1
        limits = {"min_resource": max(1, rounds // _FACTOR ** (_LOOKS - 1)), "reduction_factor": _FACTOR}
        pruner = (
            optuna.pruners.SuccessiveHalvingPruner(**limits)
            if order["pruner"] == "asha"
            else optuna.pruners.HyperbandPruner(max_resource=rounds, **limits)
        )
        # Hyperband's brackets follow from the name and the number
        study = optuna.create_study(study_name="search", direction=f"{config['mode']}imize", pruner=pruner)
        for fit in order["earlier"]:
            path, trial = cells / fit / "curve.csv", study.ask()
            for row in read_csv(path) if path.exists() else ():  # it may have failed
                _should_prune(trial, row, self.monitor)
        self._trial = [study.ask() for _ in range(len(order["earlier"]), order["number"] + 1)][-1]

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report the round, and in a resumed fit those before; the last round prunes nothing."""
        new, self._seen = self.curve.rounds[self._seen :], len(self.curve.rounds)
        for row in new:
            if _should_prune(self._trial, row, self.monitor) and trainer.current_epoch + 1 != trainer.max_epochs:
                self.score, trainer.should_stop = row[self.monitor], True


def _should_prune(trial: Any, row: Mapping[str, Any], monitor: str) -> bool:
    """Report a round of a curve; one without validation has nothing to report."""
    if row.get(monitor, "") == "":
        return False
    trial.report(float(row[monitor]), int(row["round"]))
    return bool(trial.should_prune())
