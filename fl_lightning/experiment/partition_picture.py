"""The picture of a partition beside an experiment's results: the samples of each client by class."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment.plan import Cell
from fl_lightning.files import atomic_file


def partition_picture(results: str | os.PathLike[str], fingerprint: str) -> Path | None:
    """Return the path of the picture of a partition; ``None`` if there is none.

    Its name ends with the fold and the seed that it shows: folds share a partition, and differ in the clients that
    train, validate and test.

    Args:
        results: Folder of the experiment.
        fingerprint: Fingerprint of the partition.
    """
    return next(iter(sorted((Path(results) / "partitions").glob(f"{fingerprint[:16]}-*.png"))), None)


def draw_partition(results: str | os.PathLike[str], data: FederatedDataModule, cell: Cell) -> None:
    """Draw the partition of a data module, unless that is done; warn if that fails, because a result is worth more.

    Args:
        results: Folder of the experiment.
        data: The data module, ready for use.
        cell: The cell, for its fold and seed.
    """
    fingerprint = data.partition.fingerprint()
    if partition_picture(results, fingerprint) is not None:
        return
    name = f"{fingerprint[:16]}-fold_{cell.fold}-seed_{cell.seed}.png"
    try:
        figure = data.plot().figure
        with atomic_file(Path(results) / "partitions" / name) as temporary:
            figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    except Exception as error:
        warnings.warn(f"The partition could not be drawn: {error}", stacklevel=2)
