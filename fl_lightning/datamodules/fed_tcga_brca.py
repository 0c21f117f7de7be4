"""Fed-TCGA-BRCA: survival of breast cancer patients by clinical features; six regions are the clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, PartitionFunction, Source, Split, WithinClientSplit
from fl_lightning.datamodules.files import as_path, reading

if TYPE_CHECKING:
    from pandas import DataFrame

_NO_FEATURES = ("pid", "E", "T", "region", "fold", "fold2")


class FedTCGABRCADataModule(FederatedDataModule):
    """1,088 patients of TCGA-BRCA in six regions, with FLamby's features and its test part of each region.

    A sample has 39 clinical features, float32, as FLamby does: all but the age are indicators. Its target is two
    numbers, float32: whether death was seen (1) or not (0), and after how many days that was. The labels are the
    events alone.

    Args:
        path: FLamby's ``brca.csv``, with ``dataset_creation_scripts/train_test_split.csv`` in the same folder as in
            its repository; or one table that also has the columns ``region`` (0 to 5) and ``fold`` (``train`` or
            ``test``).
        partitioner: Shares the patients out in place of the regions.
        split: Which of FLamby's training patients validate; none if ``None``. Its test patients always test.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if a file is not there.
        RuntimeError: At set-up, if a file cannot be read or has other columns.

    Example:
        >>> data = FedTCGABRCADataModule("FLamby/brca.csv", standardize="global")
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        partitioner: PartitionFunction | None = None,
        *,
        split: Split | None = None,
        **options: Any,
    ) -> None:
        if split is None:
            split = WithinClientSplit(0.0, 0.0)
        super().__init__(partitioner, split=split, **options)
        self.path = as_path("path", path)

    def load(self) -> Source:
        """Read the tables."""
        with reading(f"{self.path} and {self._split_file}", "FLamby's tables"):
            table = self._read()
            features = table.drop(columns=list(_NO_FEATURES), errors="ignore")
            x = features.to_numpy(np.float32)
            y = table[["E", "T"]].to_numpy(np.float32)
            if table.isna().any(axis=None):
                raise ValueError("there are gaps")
        dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        test = np.flatnonzero(table["fold"] == "test")
        events = y[:, 0].astype(np.int64)
        regions = table["region"].to_numpy()
        return Source(dataset, events, test, class_names=["censored", "died"], clients=regions)

    @property
    def _split_file(self) -> Path:
        return self.path.parent / "dataset_creation_scripts" / "train_test_split.csv"

    def _read(self) -> DataFrame:
        """Return the patients, with their region and fold."""
        import pandas

        table = pandas.read_csv(self.path)
        if "fold" in table:
            return table
        split = pandas.read_csv(self._split_file)
        table = table.merge(split[["pid", "fold", "fold2"]], on="pid", how="left")
        # `fold2` ends with the region, such as "train_0".
        regions = table["fold2"].str.rpartition("_")[2]
        return table.assign(region=regions.astype(int))
