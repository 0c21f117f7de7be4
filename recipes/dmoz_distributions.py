"""Figs. 3.2 to 3.5 of van Lier 2018: web pages by topic, mixed from d_0 to d_100 and d_iid, under FedAvg.

    python recipes/dmoz_distributions.py --workers 2                       # an invented dump, a few distributions
    python recipes/dmoz_distributions.py --preset paper                    # the real dumps, which you bring

The small preset writes an invented dump in the syntax of DMOZ to runs/dmoz_sample. Its figures show only that the
program runs, and say nothing about DMOZ. The paper preset reads dmoz/content.rdf.u8 and
dmoz/structure.rdf.u8 in $FL_LIGHTNING_DATA (else data/). Both need the vectors of GloVe there:
glove/glove.6B.50d.txt. The settings are in tables/dmoz_small.yaml and tables/dmoz_paper.yaml.

There are two figures beside the report. `spread.png` shows the pages of each class on each client (Fig. 3.2).
`entropy.png` shows the joint entropy of client and class of each distribution (Fig. 3.3).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from fl_lightning.command import run_presets
from fl_lightning.command.parser import ends_by_error
from fl_lightning.datamodules import DMOZDataModule
from fl_lightning.datamodules.dmoz_sample import write_sample_dump
from fl_lightning.experiment import Table

TABLES = Path(__file__).parent / "tables"
PRESETS = {name: TABLES / f"dmoz_{name}.yaml" for name in ("small", "paper")}
SAMPLE = Path("runs") / "dmoz_sample"
STEPS = 100


def find_data(table: Table) -> Table:
    """Return the table with the folder of its data; for the small preset, write the invented dump first."""
    folder = Path(os.environ.get("FL_LIGHTNING_DATA", "data"))
    if table.name == "dmoz_small":
        vectors = folder / "glove" / "glove.6B.50d.txt"
        if not vectors.is_file():
            raise FileNotFoundError(
                f"There is no {vectors}. Put the 6B vectors of GloVe with 50 dimensions there "
                "(https://nlp.stanford.edu/data/glove.6B.zip), or set FL_LIGHTNING_DATA to the folder that has them."
            )
        if not (SAMPLE / "dmoz" / "structure.rdf.u8").exists():
            write_sample_dump(SAMPLE, num_pages=20_000, seed=0)
        (SAMPLE / "glove").mkdir(exist_ok=True)
        shutil.copy(vectors, SAMPLE / "glove")
        folder = SAMPLE
    return replace(table, values={**table.values, "data_dir": str(folder)})


def draw_distributions(data_dir: str, min_samples: int, folder: Path) -> None:
    """Draw the classes of each client in d_0, d_100 and d_iid, and the entropy of d_0 to d_100."""
    from matplotlib.figure import Figure

    spread = Figure(figsize=(9, 8), layout="constrained")
    for axes, steps in zip(spread.subplots(3, 1), (0, STEPS, "iid"), strict=True):
        data = DMOZDataModule(distribution=steps, data_dir=data_dir, min_samples=min_samples)
        data.prepare_data()
        data.setup()
        assert data.labels is not None
        counts = [[(data.labels[ids] == k).sum() for k in range(12)] for ids in data.partition.indices]
        image = axes.imshow(list(zip(*counts, strict=True)), aspect="auto", interpolation="nearest", cmap="magma_r")
        spread.colorbar(image, ax=axes, label="pages", pad=0.01)
        axes.set(yticks=range(len(data.class_names or ())), yticklabels=data.class_names, title=f"d_{steps}")
    axes.set_xlabel("client")
    spread.savefig(folder / "spread.png", dpi=120)
    entropies, iid = data.entropies(STEPS)
    entropy = Figure(figsize=(6, 3.6), layout="constrained")
    axes = entropy.subplots()
    axes.plot(entropies, label="d_i")
    axes.axhline(iid, color="0.5", linestyle="--", label="d_iid")
    axes.set(xlabel="i", ylabel="joint entropy of client and class, nats")
    axes.legend(frameon=False)
    entropy.savefig(folder / "entropy.png", dpi=120)


def main() -> None:
    """Run the table and draw the distributions."""
    page = run_presets(__doc__ or "", PRESETS, prepare=find_data)
    if page is not None:
        values = json.loads((page.parents[1] / "table.json").read_text())["values"]
        draw_distributions(values["data_dir"], values["min_samples"], page.parent)
        print(f"Figures of the distributions: {page.parent / 'spread.png'}, {page.parent / 'entropy.png'}")


if __name__ == "__main__":
    with ends_by_error():
        main()
