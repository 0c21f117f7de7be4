"""What breaks a cell, each in its own way; workers import it by name."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback

from fl_lightning.experiment.files import write_json
from fl_lightning.models import LogisticRegressionClassifier


class FailOnce(Callback):
    """Fails at the end of a round, unless a file exists; the file is made first."""

    def __init__(self, marker: str, at_round: int = 3) -> None:
        self.marker, self.at_round = Path(marker), at_round

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch + 1 == self.at_round and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("broken by the test")


class Hang(Callback):
    """Never ends."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        threading.Event().wait()


class Raise(Callback):
    """Raises something that is no ordinary error."""

    def __init__(self, kind: str) -> None:
        self.kind = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[kind]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        raise self.kind(3)


class FailAlways(Callback):
    """Fails at the start, and adds a line to a file."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with self.marker.open("a") as file:
            file.write("tried\n")
        raise RuntimeError("broken by the test")


class StandStill(Callback):
    """Stops its process, as Ctrl-Z does."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class LoseClaim(Callback):
    """Lets another runner claim the cell and release it, at the first call of a hook; notes the attempts."""

    def __init__(self, marker: str, hook: str) -> None:
        self.marker = Path(marker)
        setattr(self, hook, self._lose)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        folder = Path(trainer.default_root_dir)
        state = "a result" if (folder / "result.json").exists() else "no result"
        with self.marker.open("a") as file:
            file.write(f"{state}, attempt {len(list(folder.glob('claim-*')))}\n")

    def _lose(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        other = Path(trainer.default_root_dir) / "claim-2"
        if not other.exists():
            write_json(other, {"released": True})


class TakesAnything(Callback):
    """Has an argument without a type."""

    def __init__(self, value) -> None:
        self.value = value


class Die(Callback):
    """Ends the process at once, with a status or by a signal."""

    def __init__(self, code: int) -> None:
        self.code = code

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.code >= 0:
            os._exit(self.code)
        os.kill(os.getpid(), -self.code)


class Allocate(Callback):
    """Asks for memory that it never uses."""

    def __init__(self, gigabytes: float) -> None:
        self.gigabytes = gigabytes

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        bytearray(int(self.gigabytes * 1e9))


def away_in_round_2(index: int) -> list[int]:
    """Nobody can be reached in the second round."""
    return [] if index == 1 else [0, 1, 2, 3, 4, 5]


class OwnModel(LogisticRegressionClassifier):
    """A model of one's own, of which nobody knows what it logs."""


class WithoutWeights(LogisticRegressionClassifier):
    """A model whose weights cannot be had on this machine."""

    def __init__(self, **arguments: float) -> None:
        raise OSError("no network")


def no_model() -> LogisticRegressionClassifier:
    """Return something else than the annotation says."""
    return 3  # type: ignore[return-value]


class LogTests(Callback):
    """Appends a line to a file when a cell has been tested: the name of its folder."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with self.path.open("a") as file:
            file.write(f"{Path(trainer.default_root_dir).name}\n")
