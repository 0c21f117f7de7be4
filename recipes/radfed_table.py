"""Table III of Xue et al. 2021: nine methods on nine settings, tuned on validation clients.

    python recipes/radfed_table.py --workers 2                             # every cell in its smallest form
    python recipes/radfed_table.py --preset reduced --workers 2            # in hours
    python recipes/radfed_table.py --preset long --workers 2               # COVFEAT: 400 rounds
    python recipes/radfed_table.py --preset probe --data COVFEAT-L         # COVFEAT at 20,000 rounds
    python recipes/radfed_table.py --preset steps_short                    # COVFEAT-L: steps and S, 5,000 rounds
    python recipes/radfed_table.py --preset steps --workers 2              # COVFEAT-L: 1 or 5 steps, or one epoch
    python recipes/radfed_table.py --preset rounds --data MNIST-0.1 --methods FedAvg FedAvg-uniform RADFed
    python recipes/radfed_table.py --preset paper --estimate               # the time of the paper's setting
    python recipes/radfed_table.py --preset paper --data COVCLS-G COVCLS-L --folds 0 1 --workers 2

FedAvg, FedProx and FedAdapt weigh clients by their sizes; their rows named -uniform weigh all alike, as RADFed does.
The preset `rounds` has the paper's numbers of rounds for Covertype's features, MNIST and CIFAR-10.

The settings are in tables/radfed_<preset>.yaml. A table of your own may name one of them as its `base`; run it by
fl-lightning run. The data are CIFAR-10 with the weights of MobileNetV2, the plays, Covertype, MNIST
and eICU, in $FL_LIGHTNING_DATA, else in data/. A setting without its data fails; the others go on.
"""

from __future__ import annotations

from pathlib import Path

from fl_lightning.command import run_presets

TABLES = Path(__file__).parent / "tables"
PRESETS = {
    name: TABLES / f"radfed_{name}.yaml"
    for name in ("small", "reduced", "long", "probe", "steps_short", "steps", "rounds", "paper")
}

if __name__ == "__main__":
    run_presets(__doc__ or "", PRESETS)
