"""Runs a table in turns: all of its fits have a round before one of them has the next, so that it may end at any time.

    python research/scripts/by_round.py fl_lightning/recipes/tables/personal_fashion.yaml runs/by_round --rounds 2

The fits are those of ``fl-lightning run``, with a test after each round, and what a method does after its last round
is done after each. The same command goes on where it was killed, or with more rounds. It writes ``rounds.csv``, a row
for each round of a fit, and ``clients.csv``, a row for each client of it. ``--last`` names methods that have a round
when all others have it; ``--seeds`` takes some of the table's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import warnings
from collections import Counter
from pathlib import Path

import lightning as L
import pandas as pd

from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment import build
from fl_lightning.experiment.plan import Cell, planned, table_cells
from fl_lightning.experiment.table_file import read_table


def read_data(cell: Cell) -> FederatedDataModule:
    """Return the data of a cell."""
    L.seed_everything(cell.seed, verbose=False)
    data = build.datamodule(cell.config)
    data.prepare_data()
    data.setup()
    return data


def play(cell: Cell, data: FederatedDataModule, number: int, folder: Path) -> None:
    """Train one more round, test, and write what came out."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "last.ckpt"
    begun = time.process_time()
    L.seed_everything(cell.seed, verbose=False)
    module = build.model(cell.config)
    metric = build.metric(cell.config)
    config = {**cell.config, "trainer": {**cell.config["trainer"], "max_epochs": number}}
    callbacks = [build.method(config), metric]
    trainer = build.trainer(config, callbacks, default_root_dir=folder, logger=False, enable_checkpointing=False)
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint if number > 1 else None)
    trainer.save_checkpoint(folder / "new.ckpt")
    seconds = time.process_time() - begun
    val = {name: float(value) for name, value in trainer.callback_metrics.items()}
    [test] = trainer.test(module, datamodule=data, verbose=False)
    test_clients = data.eval_client_ids("test")
    assert test_clients is not None
    samples: Counter[int] = Counter(test_clients.tolist())
    clients = []
    for client, score in metric.values["test"].items():
        clients.append({"client": client, "samples": samples[client], "test_acc": score})
    os.replace(folder / "new.ckpt", checkpoint)
    row = {
        "method": cell.method,
        "seed": cell.seed,
        "round": number,
        "seconds": seconds,
        "val": val,
        "test": test,
        "clients": clients,
    }
    (folder / f"round{number}.json").write_text(json.dumps(row))


def number_of(path: Path) -> int:
    """Return the round of a file."""
    return int(path.stem.removeprefix("round"))


def collect(cells: list[Cell], output: Path) -> None:
    """Write the two files."""
    rounds = []
    clients = []
    for cell in cells:
        folder = output / f"{cell.method}-{cell.seed}"
        for path in sorted(folder.glob("round*.json"), key=number_of):
            found = json.loads(path.read_text())
            head = {name: found[name] for name in ("method", "seed", "round")}
            row = dict(head)
            for part in ("val", "test"):
                for end in ("", "_weighted"):
                    row[f"{part}{end}"] = round(found[part][f"{part}_acc_personal{end}"], 6)
            row["seconds"] = round(found["seconds"], 1)
            rounds.append(row)
            for client in found["clients"]:
                clients.append({**head, **client, "test_acc": round(client["test_acc"], 6)})
    pd.DataFrame(rounds).to_csv(output / "rounds.csv", index=False, lineterminator="\n")
    pd.DataFrame(clients).to_csv(output / "clients.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=0, help="0 only writes the files")
    parser.add_argument("--last", nargs="+", default=())
    parser.add_argument("--seeds", type=int, nargs="+", help="some of the table's seeds")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
    table = read_table(options.table).only(seeds=options.seeds)
    every = table_cells(table, planned(table))
    in_turn = sorted(every, key=lambda cell: (cell.method in options.last, cell.seed))
    # The data of one seed are in memory at a time.
    data = None
    seed_of_data = None
    for number in range(1, options.rounds + 1):
        for cell in in_turn:
            folder = options.output / f"{cell.method}-{cell.seed}"
            if (folder / f"round{number}.json").exists():
                continue
            if data is None or seed_of_data != cell.seed:
                data = read_data(cell)
                seed_of_data = cell.seed
            play(cell, data, number, folder)
    collect(every, options.output)
