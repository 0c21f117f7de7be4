"""Table III of Xue et al. 2021: nine methods on nine settings, tuned on validation clients.

    python recipes/radfed_table.py --workers 2                             # every cell in its smallest form
    python recipes/radfed_table.py --preset reduced --workers 2            # in hours
    python recipes/radfed_table.py --preset long --workers 2               # COVFEAT: FedAvg and RADFed, 400 rounds
    python recipes/radfed_table.py --preset paper --estimate               # how long the paper's setting would take
    python recipes/radfed_table.py --preset paper --data COVCLS-G COVCLS-L --folds 0 1 --workers 2

The settings are tables/radfed_<preset>.yaml; a table of your own may have one of them as its `base` and be run by
python -m fl_lightning.experiment. Data are looked for in $FL_LIGHTNING_DATA, else in data/: CIFAR-10 with MobileNetV2's
weights, the plays, Covertype, MNIST and eICU. A setting whose data are missing fails, and the others go on.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from fl_lightning.experiment import Table
from fl_lightning.report import run_presets

TABLES = Path(__file__).parent / "tables"
PRESETS = {name: TABLES / f"radfed_{name}.yaml" for name in ("small", "reduced", "long", "paper")}
WEIGHTS_FILE = "mobilenet_v2-b0353104.pth"


def find_weights(table: Table) -> Table:
    """Return the table with MobileNetV2's weights of the data folder, where they are; else torchvision finds them."""
    path = Path(os.environ.get("FL_LIGHTNING_DATA", "data")) / "weights" / WEIGHTS_FILE
    return replace(table, values={**table.values, "weights": str(path)}) if path.is_file() else table


if __name__ == "__main__":
    run_presets(__doc__ or "", PRESETS, prepare=find_weights)
