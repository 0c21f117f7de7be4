"""The communication tables of Acar et al. 2021 (FedDyn): models sent until a run reaches a target accuracy.

    python recipes/feddyn_communication.py --workers 2                     # convex synthetic data, and MNIST in small
    python recipes/feddyn_communication.py --preset reduced --workers 2    # fewer rounds, without CIFAR and the plays
    python recipes/feddyn_communication.py --preset cifar_short            # CIFAR-10, Dirichlet .3, 50 rounds
    python recipes/feddyn_communication.py --preset cifar                  # CIFAR-10, 200 rounds; wants a GPU
    python recipes/feddyn_communication.py --preset paper --estimate       # the time of the paper's setting
    python recipes/feddyn_communication.py --preset paper --data synthetic-homogeneous synthetic-inputs

The methods are FedDyn, FedAvg, FedProx and SCAFFOLD with 100 %, 10 % and 1 % of the devices a round (each is active by
chance, as in the authors' code). The data are IID or Dirichlet .6 or .3, balanced or unbalanced, on 100 or 1000
devices, and the convex synthetic data. Cost is counted in rounds of FedAvg; SCAFFOLD sends two vectors. As in the
paper there is no validation set: curves and targets are of the test set (of the synthetic data: the union of the
training data). They are of the mean of every device's last model, as in the paper's figures, but in `small` and
`reduced` of the model that devices receive. Some targets are not in the paper's text; the tables add them.

The settings are in tables/feddyn_<preset>.yaml. The data are MNIST, the letters of EMNIST, CIFAR-10 and -100 and the
plays, in $FL_LIGHTNING_DATA, else in data/.
"""

from __future__ import annotations

from pathlib import Path

from fl_lightning.command import run_presets

TABLES = Path(__file__).parent / "tables"
PRESETS = {name: TABLES / f"feddyn_{name}.yaml" for name in ("small", "reduced", "cifar_short", "cifar", "paper")}

if __name__ == "__main__":
    run_presets(__doc__ or "", PRESETS)
