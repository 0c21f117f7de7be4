"""Checkpoints: the best aggregated model, and the newest round, which survives kills and full disks."""

from __future__ import annotations

import warnings
from itertools import count
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning._lightning.checkpoint_files import before, is_elsewhere, save_whole, use_whole_files
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.trainer_callbacks import ChosenCheckpoint
from fl_lightning.files import is_whole, make_folder
from fl_lightning.metrics import larger_is_better
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.settings import Count, Natural, check, check_arguments

#: Numbers of ``ModelCheckpoint`` with their limits.
_NUMBERS: dict[str, Any] = {
    "save_top_k": Annotated[int, "[-1, inf)"],
    "every_n_epochs": Natural | None,
    "every_n_train_steps": Natural | None,
}


class FederatedCheckpoint(ChosenCheckpoint):
    """A ``ModelCheckpoint`` that chooses among models that the server aggregated, and keeps the newest round safe.

    With RADFed the module holds a mean of circulating models between two aggregations. That mean is validated, but it
    is never chosen as the best checkpoint. ``fed/aggregated`` in the logs shows which rounds count; with other
    algorithms every round does. Where a score of clients' own models is monitored, such as ``val_acc_personal``, only
    rounds count in which they are made (:class:`~fl_lightning.FedAvgFineTuned`).

    ``last.ckpt`` holds the newest round, aggregated or not, with all that a resumed fit needs, and
    ``last.previous.ckpt`` the round before. Files appear whole or not at all, so that a kill or a full disk at any
    moment leaves one of the two, and ``trainer.fit(ckpt_path="last")`` finds it. A new fit in a folder with such files
    writes ``last-v1.ckpt``. A best file that a new one replaces is removed only when ``last.ckpt`` knows the new one,
    so that the best file that ``last.ckpt`` names is always there.

    Args:
        dirpath: Folder; by default the logger's.
        filename: Name of the best checkpoints, without the suffix.
        monitor: The logged value that makes a checkpoint the best; ``None`` takes the newest candidate.
        save_last: Whether to keep the newest round.
        last_every_n_epochs: Rounds from one ``last.ckpt`` to the next.
        **options: Further arguments of ``ModelCheckpoint``.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range or has no effect.

    Example:
        >>> best = FederatedCheckpoint("checkpoints", monitor="val_acc", mode="max")
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[FedAvg(2), best])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.test(datamodule=data, ckpt_path="best")
        >>> L.Trainer(max_epochs=4, callbacks=[FedAvg(2), FederatedCheckpoint("checkpoints")]).fit(
        ...     module, datamodule=data, ckpt_path="last"
        ... )
    """

    # Nothing is saved inside of rounds. With a hook that says so, the clients of a round can be stacked.
    on_train_batch_end = Callback.on_train_batch_end

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        *,
        save_last: bool = True,
        last_every_n_epochs: Count = 1,
        **options: Any,
    ) -> None:
        given = {"dirpath": dirpath, "filename": filename, "monitor": monitor}
        check_arguments(self, {**given, "save_last": save_last, "last_every_n_epochs": last_every_n_epochs})
        kinds = {**get_type_hints(ModelCheckpoint.__init__), **_NUMBERS}
        for name, value in options.items():
            if name in kinds:
                check(f"`{name}` of FederatedCheckpoint", value, kinds[name])
        # LightningCLI gives all defaults, so that "min" may not have been asked for.
        if options.get("mode", "min") != "min" and monitor is None:
            raise ValueError(
                f"`mode` has no effect without `monitor`, got {options['mode']!r}. Give `monitor` the name of a logged "
                "value, such as 'val_acc'."
            )
        if monitor is not None and "mode" not in options and larger_is_better(monitor):
            rank_zero_warn(
                f"FederatedCheckpoint(monitor={monitor!r}) keeps the model with the smallest {monitor}: "
                'ModelCheckpoint\'s `mode` is "min". Give `mode="max"`, or `mode="min"` if that is meant.'
            )
        super().__init__(dirpath, filename, monitor, save_last=False, **options)
        self.keeps_last = save_last
        self.last_every_n_epochs = last_every_n_epochs
        self._last: Path | None = None
        #: Best files that are removed when `last.ckpt` no longer names them.
        self._outdated: list[str] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the folder.

        Raises:
            OSError: If no file can be written into ``dirpath``.
        """
        folder = str(self.dirpath or "")
        if stage == "fit" and folder and "://" not in folder and not fit_trainer(trainer).fast_dev_run:
            make_folder("dirpath", folder, "Give another folder, or leave `dirpath` out for the logger's.")
        with warnings.catch_warnings():
            # A fit that resumes finds the files of the run before, and a new one overwrites none.
            warnings.filterwarnings("ignore", ".*exists and is not empty")
            super().setup(trainer, pl_module, stage)
        use_whole_files(trainer)
        self._last = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, if the model is an aggregated one; keep the newest round."""
        super().on_train_epoch_end(trainer, pl_module)
        due = (trainer.current_epoch + 1) % self.last_every_n_epochs == 0
        if self.keeps_last and due and not fit_trainer(trainer).fast_dev_run:
            self._keep_last(trainer)
            self._remove_outdated(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the best files that others have replaced."""
        super().on_train_end(trainer, pl_module)
        self._remove_outdated(trainer)

    def remove(self, trainer: pl.Trainer, path: str) -> None:
        """Remove a best file, if need be when ``last.ckpt`` no longer names it."""
        self._outdated.append(path)
        if not self.keeps_last:
            self._remove_outdated(trainer)

    def _remove_outdated(self, trainer: pl.Trainer) -> None:
        for path in self._outdated:
            # A later model may have got the name. Without `monitor` there are no best ones but the newest.
            if path not in (*self.best_k_models, self.best_model_path):
                trainer.strategy.remove_checkpoint(path)
        self._outdated = []

    def state_dict(self) -> dict[str, Any]:
        """Return the best files, and those that are to be removed."""
        return {**super().state_dict(), "outdated": self._outdated}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the files of a checkpoint."""
        super().load_state_dict(state_dict)
        self._outdated = []
        if state_dict["dirpath"] == self.dirpath:
            self._outdated = list(state_dict["outdated"])

    def is_candidate(self, trainer: pl.Trainer) -> bool:
        """Return whether the server has aggregated the module's model, and the monitored score is of this round."""
        algorithm: Algorithm | None = getattr(trainer.fit_loop, "algorithm", None)
        if algorithm is None:
            return True
        # In rounds in which clients' own models are not made there is no score of them.
        if "_personal" in (self.monitor or "") and not algorithm.run.personal_is_current:
            return False
        return algorithm.run.aggregated

    def _keep_last(self, trainer: pl.Trainer) -> None:
        # A remote store takes a file whole or not at all.
        if is_elsewhere(self.dirpath):
            self.last_model_path = self._in_store(f"{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}")
            trainer.save_checkpoint(self.last_model_path, weights_only=False)
            return
        if self._last is None:
            path = ""
            if trainer.is_global_zero:
                path = str(self._path_of_last(Path(str(self.dirpath))))
            self._last = Path(trainer.strategy.broadcast(path))
            # An earlier fit's file may be damaged. Those of this fit are whole.
            self._is_whole = trainer.is_global_zero and is_whole(self._last)
        # The path is part of the checkpoint.
        self.last_model_path = str(self._last)
        save_whole(trainer, self._last, keep_previous=self._is_whole)
        self._is_whole = True

    def _in_store(self, name: str) -> str:
        """Return the path of a file in the folder, which is in a remote store."""
        return f"{str(self.dirpath).rstrip('/')}/{name}"

    def _path_of_last(self, folder: Path) -> Path:
        """Return the file that this run has written already, or one that no other run has."""
        for version in count():
            name = self.CHECKPOINT_NAME_LAST
            if version > 0:
                name += f"-v{version}"
            path = folder / f"{name}{self.FILE_EXTENSION}"
            is_taken = path.exists() or before(path).exists()
            if str(path) == self.last_model_path or not is_taken:
                return path
        raise AssertionError

    # ---- resuming ----

    def choose_last(self, paths: set[str]) -> set[str]:
        """Return the files that ``ckpt_path="last"`` finds, and the one before for one that is missing.

        The file that is chosen is compared with its checksums when it is read.
        """
        if is_elsewhere(self.dirpath):
            # Lightning leaves out which store it is.
            return {self._in_store(Path(path).name) for path in paths}
        chosen = set()
        newest = {path.replace(f".previous{self.FILE_EXTENSION}", self.FILE_EXTENSION) for path in paths}
        for path in map(Path, newest):
            if path.exists():
                chosen.add(str(path))
                continue
            rank_zero_warn(f"{path} is missing. The fit resumes from {before(path).name}, the round before.")
            chosen.add(str(before(path)))
        return chosen
