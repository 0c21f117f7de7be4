"""Callbacks of a cell: they record its curve, report its progress and save a checkpoint to resume from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, Checkpoint

from fl_lightning._lightning.trainer_callbacks import names_of_validation
from fl_lightning.experiment.claims import Claim
from fl_lightning.experiment.files import read_csv, write_text
from fl_lightning.experiment.search import new_study

#: From one look at a fit to the next the rounds grow by this factor. The best of so many fits goes on.
_FACTOR = 3
#: The last look is at the end, so that the first one is after a ninth of the rounds.
_LOOKS = 3


class CurveRecorder(Callback):
    """Keeps the logged metrics of each round, and writes them to a file as they come, one JSON object a line.

    A round without validation has no validation metrics.

    Args:
        path: The file. A resumed fit writes it again.

    Attributes:
        rounds: The rounds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds: list[dict[str, Any]] = []
        self._of_validation: set[str] = set()
        self._validated = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin the file."""
        lines = [f"{json.dumps(row)}\n" for row in self.rounds]
        write_text(self.path, "".join(lines))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note the metrics that validation has logged."""
        self._of_validation |= names_of_validation(trainer)
        self._validated = True

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the round."""
        row: dict[str, Any] = {"round": trainer.current_epoch + 1}
        for name, value in trainer.callback_metrics.items():
            # A round without validation still has the metrics of the last one.
            if self._validated or name not in self._of_validation:
                row[name] = float(value)
        self._validated = False
        self.rounds.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")

    def state_dict(self) -> dict[str, Any]:
        """Return the rounds, and the names of the metrics whose old values a resumed fit sees before it validates."""
        return {"rounds": self.rounds, "of_validation": sorted(self._of_validation)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the rounds and names of a checkpoint."""
        self.rounds = state_dict["rounds"]
        self._of_validation = set(state_dict["of_validation"])


class KeepLast(Checkpoint):
    """Saves a checkpoint from time to time, so that a killed fit can resume.

    Args:
        attempt: The attempt at the cell. Each checkpoint replaces the one before it, and the file is never half
            written. That of the attempt before stays.
        seconds: Time between two checkpoints; 0 saves after every round.
        code: Version of the code.
        check_claim: Called before each checkpoint; it ends the fit of a runner that has lost the cell.

    Attributes:
        codes: Versions of the code under which the fit has run, in their order.
    """

    def __init__(self, attempt: Claim, seconds: float, code: str, check_claim: Callable[[], None]) -> None:
        self.attempt = attempt
        self.seconds = seconds
        self.codes = [code]
        self.check_claim = check_claim
        self._begun = time.monotonic()
        self._saved = self._begun

    @property
    def seconds_so_far(self) -> float:
        """Seconds of the whole fit; those after a checkpoint that a kill has undone do not count."""
        return time.monotonic() - self._begun

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if it is time, but not after the last round: a resumed fit would have nothing left to run."""
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if last or time.monotonic() - self._saved < self.seconds:
            return
        self.check_claim()
        trainer.save_checkpoint(self.attempt.file("last.ckpt"), weights_only=False)
        for earlier in list(self.attempt.earlier())[1:]:
            earlier.file("last.ckpt").unlink(missing_ok=True)
        self._saved = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds so far, and the versions of the code."""
        return {"seconds": self.seconds_so_far, "codes": self.codes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the seconds and the versions of a checkpoint."""
        self._begun -= state_dict["seconds"]
        before = state_dict["codes"]
        # The version that goes on with its own fit counts once.
        self.codes = before if self.codes == before[-1:] else [*before, *self.codes]


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
        from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner

        self.monitor = config["monitor"]
        self.curve = curve
        self.score: float | None = None
        self._seen = 0
        order = config["pruning"]
        rounds = config["trainer"]["max_epochs"]
        first_look = max(1, rounds // _FACTOR ** (_LOOKS - 1))
        pruner: BasePruner
        if order["pruner"] == "asha":
            pruner = SuccessiveHalvingPruner(min_resource=first_look, reduction_factor=_FACTOR)
        else:
            pruner = HyperbandPruner(min_resource=first_look, max_resource=rounds, reduction_factor=_FACTOR)
        # Hyperband's brackets follow from the name of the study and the number of the trial.
        study = new_study(config["mode"], study_name="search", pruner=pruner)
        for fit in order["earlier"]:
            path = cells / fit / "curve.csv"
            trial = study.ask()
            # A fit that has failed has no curve.
            if path.exists():
                for row in read_csv(path):
                    _should_prune(trial, row, self.monitor)
        # Points that are tried at the same time have trials too, so that the number of this one is that of its point.
        for _ in range(len(order["earlier"]), order["number"] + 1):
            self._trial = study.ask()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the round, and in a resumed fit those before; the last round prunes nothing."""
        new = self.curve.rounds[self._seen :]
        self._seen = len(self.curve.rounds)
        is_last = trainer.current_epoch + 1 == trainer.max_epochs
        for row in new:
            should_prune = _should_prune(self._trial, row, self.monitor)
            if should_prune and not is_last:
                self.score = row[self.monitor]
                trainer.should_stop = True


def _should_prune(trial: Any, row: Mapping[str, Any], monitor: str) -> bool:
    """Report a round of a curve; one without validation has nothing to report."""
    if row.get(monitor, "") == "":
        return False
    trial.report(float(row[monitor]), int(row["round"]))
    return bool(trial.should_prune())
