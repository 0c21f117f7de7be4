"""eICU collaborative research database: death in hospital predicted from APACHE's variables; hospitals are clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, PartitionFunction, Source
from fl_lightning.data.inputs import Imputation
from fl_lightning.datamodules.files import reading, resolve_data_dir, where_to_put
from fl_lightning.settings import check_arguments

if TYPE_CHECKING:
    from pandas import DataFrame

STAY = "patientunitstayid"
DIED = "diedinhospital"
# fmt: off
PHYSIOLOGY = (
    "intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds", "urine", "wbc", "temperature",
    "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2", "pco2",
    "bun", "glucose", "bilirubin", "fio2",
)
"""Columns of apacheApsVar."""
PREDICTORS = (
    "gender", "age", "bedcount", "admitsource", "graftcount", "thrombolytics", "aids", "hepaticfailure", "lymphoma",
    "metastaticcancer", "leukemia", "immunosuppression", "cirrhosis", "electivesurgery", "activetx", "readmit", "ima",
    "midur", "ventday1", "oobventday1", "oobintubday1", "diabetes", "ejectfx", "visitnumber", "amilocation",
)
"""Columns of apachePredVar that are known on the first day and are not in apacheApsVar."""
# fmt: on
FEATURES = PHYSIOLOGY + PREDICTORS

Cohort = Literal["paper", "demo"]
# A hospital has more admissions than the first number, and a mortality of at most the second.
_LIMITS: dict[Cohort, tuple[int, float]] = {"paper": (100, 0.2), "demo": (5, 1.0)}


class EICUDataModule(FederatedDataModule):
    """Stays in intensive care with an APACHE result; class 1 died in hospital. Each hospital is a client.

    A sample has the 49 features ``FEATURES``: those of apacheApsVar, then those of apachePredVar. Columns that the
    release holds constant, outcomes and the text of the diagnosis are left out. There -1 stands for a missing value and
    is filled with a mean; a missing ``electivesurgery`` counts as 0, and a stay without outcome is left out. The papers
    do not list their features.

    Reads ``patient``, ``apacheApsVar``, ``apachePredVar`` and ``apachePatientResult`` of the full release 2.0 or of the
    open demo, ``.csv`` or ``.csv.gz``, names in upper or lower case. The full release needs credentials; it is never
    downloaded.

    Args:
        data_dir: Folder that holds the files in ``eicu/`` or ``eicu/csv/``; if ``None`` the environment variable
            ``FL_LIGHTNING_DATA``, else ``data``.
        partitioner: Shares the samples out in place of the hospitals.
        cohort: ``"paper"`` keeps hospitals with more than 100 admissions and a mortality of at most 20 % (Xue et al.
            2021, section IV-B). ``"demo"`` keeps hospitals with more than 5 admissions and any mortality: the open
            demo has about 10 a hospital. It is a stand-in, whose results do not compare with the paper's.
        impute: ``"local"`` fills missing values with the hospital's mean, ``"global"`` with that of all training
            hospitals.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        ValueError: If an argument is unknown; at set-up, if no hospital meets the cohort's limits.
        FileNotFoundError: At set-up, if a table is not there.
        RuntimeError: At set-up, if a table cannot be read or has other columns.

    Example:
        >>> data = EICUDataModule("data", cohort="demo", standardize="global")
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        cohort: Cohort = "paper",
        impute: Imputation = "local",
        **options: Any,
    ) -> None:
        super().__init__(partitioner, impute=impute, **options)
        self.data_dir = resolve_data_dir(data_dir)
        self.cohort: Cohort = cohort
        check_arguments(self)

    def load(self) -> Source:
        """Read the tables and select the cohort: float32, shape (N, 49), NaN where a value is missing."""
        stays = self._select(self._read_stays())
        features = np.array(stays[list(FEATURES)], dtype=np.float32)
        features[features == -1] = np.nan
        surgery = FEATURES.index("electivesurgery")
        features[:, surgery] = np.nan_to_num(features[:, surgery], nan=0.0)
        labels = np.array(stays[DIED], dtype=np.int64)
        dataset = TensorDataset(torch.from_numpy(features), torch.from_numpy(labels))
        hospitals = stays["hospitalid"].to_numpy()
        return Source(dataset, labels, class_names=["survived", "died"], clients=hospitals)

    def _read_stays(self) -> DataFrame:
        """Return the stays that are in all tables and whose outcome is known, ascending."""
        stays = self._read("patient", ("hospitalid",))
        for table in (
            self._read("apacheApsVar", PHYSIOLOGY),
            self._read("apachePredVar", (*PREDICTORS, DIED)),
            self._read("apachePatientResult", ()),
        ):
            stays = stays.merge(table, on=STAY)
        is_known = stays[DIED].isin((0, 1))
        return stays[is_known].sort_values(STAY, ignore_index=True)

    def _select(self, stays: DataFrame) -> DataFrame:
        """Return the stays in hospitals that meet the cohort's limits."""
        more_than, max_mortality = _LIMITS[self.cohort]
        hospitals = stays.groupby("hospitalid")[DIED]
        admissions = hospitals.transform("size")
        mortality = hospitals.transform("mean")
        selected = stays[(admissions > more_than) & (mortality <= max_mortality)]
        if len(selected) == 0:
            raise ValueError(
                f"No hospital of {self.data_dir / 'eicu'} has more than {more_than} admissions and a mortality of at "
                f"most {max_mortality:.0%}, as `cohort={self.cohort!r}` asks. For the open demo give `cohort='demo'`."
            )
        if self.cohort == "demo":
            rank_zero_info(
                f"eICU with the relaxed filters of `cohort='demo'`, a stand-in: {selected['hospitalid'].nunique()} "
                f"hospitals with more than {more_than} admissions. Results do not compare with the paper's."
            )
        return selected.reset_index(drop=True)

    def _read(self, table: str, columns: Sequence[str]) -> DataFrame:
        """Return a table's stays and columns, named in lower case."""
        import pandas

        path = self._find(table)
        wanted = [STAY, *columns]
        with reading(path, f"eICU's table {table}"):
            if path.suffix.lower() == ".csv" and not path.read_bytes().endswith(b"\n"):
                raise ValueError("its last line is cut off")
            content = pandas.read_csv(path, usecols=lambda name: name.lower() in wanted)
            content = content.rename(columns=str.lower)
            content = content[wanted].apply(pandas.to_numeric)
        # A result has a row for each version of APACHE.
        stays: DataFrame = content.drop_duplicates(STAY)
        return stays

    def _find(self, table: str) -> Path:
        names = {f"{table.lower()}.csv", f"{table.lower()}.csv.gz"}
        folder = self.data_dir / "eicu"
        for place in (folder, folder / "csv"):
            found = sorted(path for path in place.glob("*") if path.name.lower() in names)
            if found:
                return found[0]
        tables = "eICU's tables (https://physionet.org/content/eicu-crd, or eicu-crd-demo for the open demo)"
        raise FileNotFoundError(
            f"There is no {table}.csv or {table}.csv.gz in {folder} or {folder / 'csv'}. {where_to_put(tables, folder)}"
        )
