"""An invented release of eICU in the size and the files of the real one, for tests and benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

MISSING = {
    "urine": 0.5, "wbc": 0.3, "temperature": 0.1, "sodium": 0.25, "ph": 0.8, "hematocrit": 0.3, "creatinine": 0.25,
    "albumin": 0.6, "pao2": 0.8, "pco2": 0.8, "bun": 0.25, "glucose": 0.2, "bilirubin": 0.65, "fio2": 0.8,
    "eyes": 0.05, "motor": 0.05, "verbal": 0.05, "meds": 0.03,
}  # fmt: skip
"""Shares of values that are missing, -1, about those of the open demo."""

NORMAL = {
    "urine": (1700, 900), "wbc": (12, 5), "temperature": (36.5, 0.8), "respiratoryrate": (26, 12), "sodium": (138, 5),
    "heartrate": (98, 28), "meanbp": (84, 35), "ph": (7.36, 0.09), "hematocrit": (33, 6), "creatinine": (1.5, 0.9),
    "albumin": (2.9, 0.6), "pao2": (125, 60), "pco2": (42, 11), "bun": (26, 14), "glucose": (160, 70),
    "bilirubin": (1.2, 0.8), "fio2": (55, 25),
}  # fmt: skip
"""Mean and standard deviation of each measured variable."""

RARE = (
    "intubated", "vent", "dialysis", "meds", "thrombolytics", "aids", "hepaticfailure", "lymphoma", "metastaticcancer",
    "leukemia", "immunosuppression", "cirrhosis", "activetx", "readmit", "ima", "midur", "ventday1", "oobventday1",
    "oobintubday1", "diabetes",
)  # fmt: skip
"""0/1 variables of apacheApsVar and apachePredVar."""

APS_VAR = (
    "apacheapsvarid", "patientunitstayid", "intubated", "vent", "dialysis", "eyes", "motor", "verbal", "meds",
    "urine", "wbc", "temperature", "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit",
    "creatinine", "albumin", "pao2", "pco2", "bun", "glucose", "bilirubin", "fio2",
)  # fmt: skip
PRED_VAR = (
    "apachepredvarid", "patientunitstayid", "sicuday", "saps3day1", "saps3today", "saps3yesterday", "gender",
    "teachtype", "region", "bedcount", "admitsource", "graftcount", "meds", "verbal", "motor", "eyes", "age",
    "admitdiagnosis", "thrombolytics", "diedinhospital", "aids", "hepaticfailure", "lymphoma", "metastaticcancer",
    "leukemia", "immunosuppression", "cirrhosis", "electivesurgery", "activetx", "readmit", "ima", "midur",
    "ventday1", "oobventday1", "oobintubday1", "diabetes", "managementsystem", "var03hspxlos", "pao2", "fio2",
    "ejectfx", "creatinine", "dischargelocation", "visitnumber", "amilocation", "day1meds", "day1verbal",
    "day1motor", "day1eyes", "day1pao2", "day1fio2",
)  # fmt: skip


def write_eicu_release(
    folder: Path, num_kept: int = 164, num_others: int = 44, *, max_admissions: int = 5683, seed: int = 0
) -> dict[int, tuple[int, int]]:
    """Write ``eicu/patient.csv.gz`` and the three APACHE tables, with the real columns.

    Of the hospitals, ``num_kept`` have more than 100 admissions with an APACHE result and a mortality of at most 20 %:
    108 to 5,683 admissions, about 901 on average, and a mortality of about 9 %, as in Xue et al. 2021. The others have
    too few admissions, or too high a mortality. One stay in eight has no APACHE result. The defaults take some seconds.

    Args:
        folder: The data directory; ``eicu`` must not be there.
        num_kept: Hospitals that meet the paper's limits.
        num_others: Hospitals that do not.
        max_admissions: Admissions of the largest hospital at most, at least 108.
        seed: Seed of everything.

    Returns:
        Admissions and deaths of each hospital that meets the limits.
    """
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.lognormal(np.log(600), 0.9, num_kept + num_others).astype(int), 108, max_admissions)
    sizes[num_kept::2] = rng.integers(20, 101, len(sizes[num_kept::2]))
    mortality = np.clip(rng.normal(0.09, 0.0376, len(sizes)), 0.01, 0.2)
    deaths = (mortality * sizes).astype(int)
    # what has admissions enough is left out for its mortality, and the last one only just
    deaths[num_kept + 1 :: 2] = sizes[num_kept + 1 :: 2] // 5 + 1
    ids = 50 + rng.permutation(2 * len(sizes))[: len(sizes)]
    hospital = np.repeat(ids, sizes)
    died = np.concatenate([rng.permutation(size) < dead for size, dead in zip(sizes, deaths, strict=True)]).astype(int)
    stays = 141_000 + np.cumsum(rng.integers(1, 20, len(hospital) + len(hospital) // 7))
    with_result = np.sort(rng.permutation(len(stays))[: len(hospital)])
    order = rng.permutation(len(hospital))
    _write(folder / "eicu", stays, with_result, hospital[order], died[order], rng)
    return {int(ids[k]): (int(sizes[k]), int(deaths[k])) for k in range(num_kept)}


def _write(
    folder: Path,
    stays: np.ndarray,
    with_result: np.ndarray,
    hospital: np.ndarray,
    died: np.ndarray,
    rng: np.random.Generator,
) -> None:
    hospital_of = rng.choice(hospital, len(stays))
    hospital_of[with_result] = hospital
    died_of = rng.integers(2, size=len(stays))
    died_of[with_result] = died
    values = _variables(died_of, rng)
    status = np.where(died_of == 1, "Expired", "Alive")
    gender = np.where(values["gender"] == 1, "Female", "Male")
    patient = {"patientunitstayid": stays, "gender": gender, "age": values["age"], "hospitalid": hospital_of}
    known = {"patientunitstayid": stays, "diedinhospital": died_of, "admitdiagnosis": "S-CABG", **values}
    result = {
        "patientunitstayid": np.repeat(stays[with_result], 2),
        "apacheversion": ["IV", "IVa"] * len(with_result),
        "actualhospitalmortality": np.repeat(np.where(died == 1, "EXPIRED", "ALIVE"), 2),
    }
    folder.mkdir(parents=True)
    for name, table in (
        ("patient", pd.DataFrame({**patient, "hospitaldischargestatus": status})),
        ("apacheApsVar", pd.DataFrame({name: known.get(name, 0) for name in APS_VAR})),
        ("apachePredVar", pd.DataFrame({name: known.get(name, 0) for name in PRED_VAR})),
        ("apachePatientResult", pd.DataFrame(result)),
    ):
        table.to_csv(folder / f"{name}.csv.gz", index=False, compression={"method": "gzip", "compresslevel": 1})


def _variables(died: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw the variables; those who died were older, more often ventilated, and measured further from the mean."""
    number = len(died)
    values = {
        name: np.round(rng.normal(mean + 0.5 * std * died, std).clip(0.0), 2) for name, (mean, std) in NORMAL.items()
    }
    values |= {name: (rng.random(number) < 0.05 + 0.2 * died).astype(int) for name in RARE}
    for name, best in (("eyes", 4), ("motor", 6), ("verbal", 5)):
        values[name] = np.where(rng.random(number) < 0.7 - 0.4 * died, best, rng.integers(1, best + 1, number))
    values["age"] = (rng.normal(62, 17, number) + 6 * died).clip(18, 89).astype(int)
    values["gender"] = rng.integers(2, size=number)
    values["bedcount"] = rng.integers(5, 85, number)
    values["admitsource"] = rng.integers(1, 9, number)
    values["visitnumber"] = rng.integers(1, 3, number)
    values["graftcount"] = np.full(number, 3)
    values["ejectfx"] = values["amilocation"] = np.full(number, -1)
    for name, share in MISSING.items():
        values[name] = np.where(rng.random(number) < share, -1, values[name])
    electivesurgery = np.where(rng.random(number) < 0.2, 1.0, np.nan)
    return {**values, "electivesurgery": electivesurgery}
