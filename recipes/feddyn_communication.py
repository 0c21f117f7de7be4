"""The communication tables of Acar et al. 2021 (FedDyn): models sent until a target accuracy is reached.

    python recipes/feddyn_communication.py --workers 2                     # convex synthetic data, and MNIST in small
    python recipes/feddyn_communication.py --preset reduced --workers 2    # fewer rounds, without CIFAR and the plays
    python recipes/feddyn_communication.py --preset paper --estimate       # how long the paper's setting would take
    python recipes/feddyn_communication.py --preset paper --data synthetic-homogeneous synthetic-inputs

FedDyn, FedAvg, FedProx and SCAFFOLD with 100 %, 10 % and 1 % of the devices a round (each active by chance, as in the
authors' code), IID and Dirichlet .6 and .3, balanced and unbalanced, 100 and 1000 devices, and on the convex synthetic
data. A model sent counts in units of a round of FedAvg; SCAFFOLD sends two vectors. As in the paper there is no
validation set: curves and targets are of the test set (the synthetic data's is the union of the training data), of the
model that devices receive. Targets that are not in the paper's text are the table's own.

The settings are tables/feddyn_small.yaml, tables/feddyn_reduced.yaml and tables/feddyn_paper.yaml. Data are looked for
in $FL_LIGHTNING_DATA, else in data/: MNIST, EMNIST's letters, CIFAR-10 and -100, the plays.
"""

from __future__ import annotations

from pathlib import Path

from fl_lightning.report import run_presets

TABLES = Path(__file__).parent / "tables"
PRESETS = {name: TABLES / f"feddyn_{name}.yaml" for name in ("small", "reduced", "paper")}

if __name__ == "__main__":
    run_presets(__doc__ or "", PRESETS)
