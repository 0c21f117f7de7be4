"""How long each data module takes to start, what memory it adds, and a second start from its cache.

    python research/scripts/data_modules.py --data_dir data
    python research/scripts/data_modules.py --data_dir data --figures docs/images

Every start is a separate process, with one thread: ``prepare_data()`` and ``setup()``, after the imports. Files are
linked into a temporary folder first, so that no cache is there at the first start and none is left behind. Modules
whose files are missing are named and left out. DMOZ reads an invented dump of ``--pages`` pages.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fl_lightning import FederatedDataModule, datamodules, partition_report
from fl_lightning.datamodules.dmoz_sample import write_sample_dump
from fl_lightning.partitioners import IIDPartitioner, QPPartitioner


def _mnist01(cls: type[FederatedDataModule]) -> Callable[[Path], FederatedDataModule]:
    return lambda folder: cls(folder, QPPartitioner(100, size_alpha=1.0, class_alpha=0.1), download=False)  # type: ignore[call-arg, arg-type]


MODULES: dict[str, Callable[[Path], FederatedDataModule]] = {
    "MNIST-0.1": _mnist01(datamodules.MNISTDataModule),
    "Fashion-MNIST": _mnist01(datamodules.FashionMNISTDataModule),
    "EMNIST letters": _mnist01(datamodules.EMNISTDataModule),
    "CIFAR-10": _mnist01(datamodules.CIFAR10DataModule),
    "COVCLS-G": lambda folder: datamodules.CovertypeDataModule.named("COVCLS-G", folder, download=False),
    "COVCLS-L": lambda folder: datamodules.CovertypeDataModule.named("COVCLS-L", folder, download=False),
    "COVFEAT-G": lambda folder: datamodules.CovertypeDataModule.named("COVFEAT-G", folder, download=False),
    "COVFEAT-L": lambda folder: datamodules.CovertypeDataModule.named("COVFEAT-L", folder, download=False),
    "Shakespeare, 38 plays": lambda folder: datamodules.ShakespeareDataModule(folder, source="markdown"),
    "eICU, open demo": lambda folder: datamodules.EICUDataModule(folder, cohort="demo"),
    "DMOZ, invented dump": lambda folder: datamodules.DMOZDataModule(folder, distribution=5, min_samples=20),
    "FedDyn's synthetic data": lambda folder: datamodules.FedDynSyntheticDataModule(),
    "FedProx's synthetic data": lambda folder: datamodules.FedProxSyntheticDataModule(),
    "digits": lambda folder: datamodules.DigitsDataModule(IIDPartitioner(10)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, default=Path("data"))
    parser.add_argument("--pages", type=int, default=60_000, help="pages of the invented DMOZ dump")
    parser.add_argument("--figures", type=Path, help="folder for figures of some federations and of DMOZ's entropy")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start is not None:
        print(json.dumps(start(args.start, args.data_dir)))
        return
    with tempfile.TemporaryDirectory() as folder:
        link_files(args.data_dir, Path(folder))
        write_sample_dump(folder, args.pages)
        print(f"{'module':<26}{'clients':>8}{'samples':>10}{'first, s':>10}{'memory, MB':>12}{'second, s':>11}")
        for name in MODULES:
            table(name, Path(folder))
        if args.figures is not None:
            draw(args.figures, Path(folder))


def link_files(source: Path, target: Path) -> None:
    """Link every file but those of caches."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and path.suffix != ".npz" and "cache" not in path.parts:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve())


def table(name: str, folder: Path) -> None:
    """Print a module's line."""
    command = [sys.executable, __file__, "--data_dir", str(folder), "--start", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    runs = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            print(f"{name:<26}left out: {done.stderr.strip().splitlines()[-1][:90]}")
            return
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = runs
    print(
        f"{name:<26}{first['clients']:>8,}{first['samples']:>10,}{first['seconds']:>10.2f}{first['megabytes']:>12,.0f}"
        f"{second['seconds']:>11.2f}"
    )


def start(name: str, folder: Path) -> dict[str, float]:
    """Start a module; memory is the growth of the process's largest size."""
    datamodule = MODULES[name](folder)
    before = _peak()
    begin = time.perf_counter()
    datamodule.prepare_data()
    datamodule.setup()
    seconds = time.perf_counter() - begin
    sizes = datamodule.partition.sizes
    return {
        "seconds": seconds,
        "megabytes": _peak() - before,
        "clients": len(sizes),
        "samples": int(sizes.sum()),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def draw(target: Path, folder: Path) -> None:
    """Draw federations as partition reports do, and the entropy of DMOZ's distributions."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("MNIST-0.1", "COVCLS-G", "COVFEAT-G", "Shakespeare, 38 plays", "eICU, open demo"):
        datamodule = MODULES[name](folder)
        datamodule.prepare_data()
        datamodule.setup()
        report = partition_report(datamodule)
        print(f"\n{name}\n{report}")
        file = name.split(",")[0].lower().replace(".", "").replace("-", "_")
        report.figure.savefig(target / f"partition_{file}.png", dpi=80, bbox_inches="tight")
    draw_entropy(target / "dmoz_entropy.png", folder)


def draw_entropy(path: Path, folder: Path) -> None:
    """Draw the joint entropy of client and class for d_0 to d_100, and for d_iid."""
    from matplotlib.figure import Figure

    datamodule = datamodules.DMOZDataModule(folder, distribution=5, min_samples=20)
    datamodule.prepare_data()
    datamodule.setup()
    curve, iid = datamodule.entropies(100)
    shown = {}
    for step in (0, 1, 5, 10, 25, 50, 75, 100):
        shown[f"d{step}"] = round(float(curve[step]), 3)
    bound = float(np.log(datamodule.partition.num_clients * 12))
    print(f"\nDMOZ, {datamodule.partition.num_clients} clients: {shown}, d_iid {iid:.3f}, bound {bound:.3f}")
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve, color="C0", label="$d_i$")
    axes.axhline(iid, color="C1", linestyle="--", label="$d_{iid}$")
    axes.set_xlabel("steps of diffusion $i$")
    axes.set_ylabel("joint entropy of client and class, nats")
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
