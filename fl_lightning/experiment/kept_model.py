"""The tested model of a cell, which a table keeps by ``keep_models``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from fl_lightning._lightning.checkpoint_files import read_checkpoint
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_models import client_model
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment import build
from fl_lightning.experiment.files import read_json
from fl_lightning.files import atomic_file
from fl_lightning.settings import PathLike, check

_FILE = "model.ckpt"
#: Only a fit that goes on needs these.
_OF_FIT = ("optimizer_states", "lr_schedulers", "callbacks")


def write_model(folder: Path, tested: Path, method: AggregationCallback) -> None:
    """Write the checkpoint of the model that was tested into the folder of a cell, whole or not at all.

    A fit that was resumed writes what one writes that was not: times and paths, which callbacks of the runner have in
    their states, are left out.

    Args:
        folder: The folder.
        tested: The checkpoint.
        method: The aggregation callback, whose state has the clients' own models.
    """
    checkpoint = read_checkpoint(tested)
    kept = {key: value for key, value in checkpoint.items() if key not in _OF_FIT}
    states = checkpoint.get("callbacks", {})
    if method.state_key in states:
        kept["callbacks"] = {method.state_key: states[method.state_key]}
    with atomic_file(folder / _FILE) as temporary, temporary.open("wb") as file:
        torch.save(kept, file)


@dataclass(frozen=True, eq=False)
class FittedCell:
    """A finished cell of a table with ``keep_models``; :func:`load_cell` returns it.

    Attributes:
        model: The module of the user, with the weights that were tested.
        datamodule: The data module, ready for use.
        trainer: A trainer with the method. ``trainer.test(cell.model, cell.datamodule)`` tests the model again.
        ckpt_path: The checkpoint.
    """

    model: L.LightningModule
    datamodule: FederatedDataModule
    trainer: L.Trainer
    ckpt_path: Path

    def client_model(self, client: int) -> dict[str, Tensor]:
        """Return the model by which a client was tested; see :func:`fl_lightning.client_model`."""
        return client_model(
            self.trainer, client, ckpt_path=self.ckpt_path, module=self.model, datamodule=self.datamodule
        )


def load_cell(folder: str | os.PathLike[str]) -> FittedCell:
    """Build the model, the data and the trainer of a finished cell again, with the weights that were tested.

    Random numbers then begin at the seed of the cell.

    Args:
        folder: The folder of the cell, ``<results>/cells/<id>``; ``results.csv`` has the ids in its column ``cell``.

    Raises:
        FileNotFoundError: If the folder is none of a cell, or the cell has kept no model.

    Example:
        >>> rows = run_table("table.yaml", "results")  # doctest: +SKIP
        >>> cell = load_cell(f"results/cells/{rows[0]['cell']}")  # doctest: +SKIP
        >>> torch.save(cell.client_model(2), "hospital_c.pt")  # doctest: +SKIP
    """
    folder = Path(check("`folder`", folder, PathLike))
    path = folder / _FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"`folder` must be that of a cell with a {_FILE}, and {folder} has none. Give <results>/cells/<id> of a "
            "table with `keep_models: true`."
        )
    config: dict[str, Any] = read_json(folder / "config.json")
    data = build.prepared_data(config)
    model = build.model(config)
    model.load_state_dict(read_checkpoint(path)["state_dict"])
    callbacks = [build.method(config), build.metric(config), *build.callbacks(config)]
    trainer = build.trainer(config, callbacks, logger=False)
    return FittedCell(model, data, trainer, path)
