"""Figs. 3.2 and 3.3 of van Lier 2018: web pages by topic, mixed from d_0 to d_100 and d_iid.

    python recipes/dmoz_distributions.py --invented    # an invented dump, which is written to runs/dmoz_sample
    fl-lightning run dmoz_small --workers 2            # Figs. 3.4 and 3.5 on it: FedAvg on a few distributions
    python recipes/dmoz_distributions.py               # the real dumps, which you bring
    fl-lightning run dmoz_paper

The invented dump has the syntax of DMOZ. Its figures show only that the program runs, and say nothing about DMOZ. The
real dumps are dmoz/content.rdf.u8 and dmoz/structure.rdf.u8 in $FL_LIGHTNING_DATA (else data/). Both need the vectors
of GloVe there: glove/glove.6B.50d.txt.

The folders d_0, d_100 and d_iid in `--output` get the pages of each class on each client (Fig. 3.2); `entropy.png` is
the joint entropy of client and class of each distribution (Fig. 3.3).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fl_lightning import partition_report
from fl_lightning.command.parser import Parser, ends_by_error
from fl_lightning.datamodules import DMOZDataModule
from fl_lightning.datamodules.dmoz_sample import write_sample_dump

SAMPLE = Path("runs") / "dmoz_sample"
STEPS = 100


def write_sample() -> None:
    """Write the invented dump, if it is missing, and put the vectors of GloVe into its folder."""
    if not (SAMPLE / "dmoz" / "structure.rdf.u8").exists():
        write_sample_dump(SAMPLE, num_pages=20_000, seed=0)
    vectors = Path(os.environ.get("FL_LIGHTNING_DATA", "data"), "glove", "glove.6B.50d.txt")
    # If they are missing, the data module says where to get them.
    if vectors.is_file():
        (SAMPLE / "glove").mkdir(exist_ok=True)
        shutil.copy(vectors, SAMPLE / "glove")


def main() -> None:
    """Report d_0, d_100 and d_iid, and draw the entropy of d_0 to d_100."""
    parser = Parser(description=__doc__)
    parser.add_argument("--invented", action="store_true", help="take an invented dump, with topics of 40 pages")
    parser.add_argument("--output", type=Path, default=Path("runs/dmoz_distributions"), help="folder of the figures")
    options = parser.parse_args()
    where: dict[str, Any] = {}
    if options.invented:
        print("STAND-IN: invented pages in DMOZ's syntax; nothing can be said about the real directory.")
        write_sample()
        where = {"data_dir": SAMPLE, "min_samples": 40}
    for distribution in (0, STEPS, "iid"):
        data = DMOZDataModule(distribution=distribution, **where)
        data.prepare_data()
        data.setup()
        partition_report(data, options.output / f"d_{distribution}", overwrite=True)
    entropies, iid = data.entropies(STEPS)
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(entropies, label="d_i")
    axes.axhline(iid, color="0.5", linestyle="--", label="d_iid")
    axes.set(xlabel="i", ylabel="joint entropy of client and class, nats")
    axes.legend(frameon=False)
    figure.savefig(options.output / "entropy.png", dpi=120)
    print(f"Figures of the distributions: {options.output}")


if __name__ == "__main__":
    with ends_by_error():
        main()
