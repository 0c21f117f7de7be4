"""The campaign of what clusters do: ``python -m tests.faults.cluster --claims 500 --stops 10 --checkpoints 100``.

Runners are killed while they claim a cell, stand still for longer than their lease, have clocks that go back, or full
temporary folders; bits of files flip; programs get signals. An attempt survives if all processes end, with the bytes
that nobody's harm would have given, or with an error that names the file. It prints attempts, survived and lost of each
kind, and ends with status 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import lightning as L
import numpy as np
import torch
import yaml
from callbacks.test_frozen_prefix_cache import Images
from callbacks.test_frozen_prefix_cache import Net as FrozenNet
from experiment.conftest import run_here
from helpers.algorithms import Net, data
from helpers.forking import Forked, in_child
from helpers.small_table import small
from helpers.toys import quiet_trainer
from helpers.waiting import wait_for
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning import FedAvg, FederatedCheckpoint, FrozenPrefixCache
from fl_lightning.command import main as command
from fl_lightning.experiment import claims
from fl_lightning.partitioners import Partition
from fl_lightning.report.results import read_results

#: Makes one attempt in a folder of its own, and returns what is wrong, or ``None``.
Harm = Callable[[Path, random.Random], str | None]
_PATIENCE = 180.0  # seconds in which all ends, also on a busy machine
_OFTEN = 0.005  # seconds between two looks at what may last for moments


class Slow(Callback):
    """Takes a while for each round."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        threading.Event().wait(self.seconds)


class Fails(Callback):
    """Fails at the end of a round, a number of times, and adds a line to a file each time."""

    def __init__(self, path: str, at_round: int, times: int) -> None:
        self.path, self.at_round, self.times = Path(path), at_round, times

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        done = self.path.read_text().count("\n") if self.path.exists() else 0
        if trainer.current_epoch + 1 == self.at_round and done < self.times:
            with self.path.open("a") as file:
                file.write("failed\n")
            raise RuntimeError("broken by the campaign")


class StandsStill(Callback):
    """Stops its process, as Ctrl-Z does."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


def table(*callbacks: tuple[str, dict[str, Any]], rounds: int = 6) -> dict[str, Any]:
    """Return a table of one cell, with callbacks of this file."""
    specs = [{"class_path": f"faults.cluster.{name}", "init_args": given} for name, given in callbacks]
    trainer = {"max_epochs": rounds, "accelerator": "cpu"}
    return small(methods={"FedAvg": small()["methods"]["FedAvg"]}, callbacks=specs, trainer=trainer)


def run(content: dict[str, Any], out: Path, workers: int = 0, **options: Any) -> list[dict[str, Any]]:
    return run_here(content, out, workers, **options).rows


# ---- claims ----


def _take(cell: Path, at: int) -> None:
    """Claim a cell, and die at one of the lines that run; with ``at=0`` note how many these are."""
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and next(lines) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    claims.Claims(lambda lost: None).take(cell)
    sys.settrace(None)
    if not at:
        (cell / "lines").write_text(str(next(lines)))


@cache
def _lines_of_a_claim(folder: Path) -> int:
    in_child(_take, folder, 0)
    return int((folder / "lines").read_text())


def kill_while_claiming(folder: Path, rng: random.Random) -> str | None:
    """Kill a process at one of the lines that it runs to claim a cell; another one must get the cell."""
    number = _lines_of_a_claim(folder.parent)
    at = rng.randint(1, number)
    in_child(_take, folder, at)
    other = claims.Claims(lambda lost: None)
    is_taken = wait_for(lambda: other.take(folder) is not None, 3.0, _OFTEN)
    return None if is_taken else f"nobody gets the cell after a kill at line {at} of {number}"


_SLOW = ("Slow", {"seconds": 0.1})


@cache
def _finished(folder: Path, rounds: int, *, slow: bool = False) -> Path:
    """Return the folder of a table that nobody has harmed."""
    run(table(*[_SLOW] * slow, rounds=rounds), folder / "whole")
    return folder / "whole"


def stop_runners(folder: Path, rng: random.Random) -> str | None:
    """Let a runner, or a node, stand still for longer than its lease, and go on beside the one that took over."""
    content = table(_SLOW, rounds=12)
    whole = _finished(folder.parent, 12, slow=True)
    workers = int(folder.name) % 2  # 0: the cell stands still with its runner, 1: it goes on in a process of its own
    first = Forked(partial(run, content, folder, workers), folder / "first.log")
    wait_for(lambda: list(folder.glob("cells/*/curve*.jsonl")), every=_OFTEN)
    threading.Event().wait(rng.uniform(0.0, 1.0))
    os.kill(first.process.pid, signal.SIGSTOP)
    second = Forked(partial(run, content, folder, workers), folder / "second.log")
    threading.Event().wait(claims.LEASE + rng.uniform(0.5, 2.0))
    os.kill(first.process.pid, signal.SIGCONT)
    statuses = [each.wait(_PATIENCE) for each in (first, second)]
    for each in (first, second):
        each.kill()
    if statuses != [0, 0]:
        return f"the runners ended with {statuses}: {first.output()[-500:]} {second.output()[-500:]}"
    for path in (whole / "results.csv", *whole.glob("cells/*/curve.csv")):
        other = folder / path.relative_to(whole)
        if not other.exists() or other.read_bytes() != path.read_bytes():
            return f"{path.name} differs"
    return None


def turn_clocks_back(folder: Path, rng: random.Random) -> str | None:
    """Let the clock go back by an hour each time; a cell that fails is tried once."""
    tries = folder / "tries"

    def back() -> None:
        begin, hours = time.time(), itertools.count()
        time.time = lambda: begin - 3600 * next(hours)  # type: ignore[assignment]
        run(table(("Fails", {"path": str(tries), "at_round": 1, "times": 1000}), rounds=2), folder)

    child = Forked(back, folder / "log")
    child.wait(_PATIENCE)
    child.kill()
    number = tries.read_text().count("\n") if tries.exists() else 0
    return None if number == 1 else f"{number} attempts: {child.output()[-500:]}"


def stop_workers(folder: Path, rng: random.Random) -> str | None:
    """Stop a worker for good; ``cell_timeout`` must end it."""
    limit = rng.uniform(3.0, 5.0)  # seconds, in which the worker comes to stand still
    child = Forked(partial(run, table(("StandsStill", {})), folder, 1, cell_timeout=limit), folder / "log")
    status = child.wait(_PATIENCE)
    child.kill()
    return None if status == 0 else f"the run ended with {status}"


# ---- files ----


def _flipped(paths: list[Path], rng: random.Random) -> Path:
    """Change one bit of one of some files, and return which."""
    path = rng.choice(sorted(paths))
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return path


def flip_checkpoints(folder: Path, rng: random.Random) -> str | None:
    """Flip a bit of a checkpoint from which a cell goes on."""
    expected = _scores(run(table(), _finished(folder.parent, 6)))
    content = table(("Fails", {"path": str(folder / "marker"), "at_round": 4, "times": 1}))
    run(content, folder)
    path = _flipped([*folder.glob("cells/*/*.ckpt")], rng)
    try:
        rows = run(content, folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    is_told = rows[0]["status"] == "failed" and path.name in rows[0]["error"]
    return None if is_told or _scores(rows) == expected else f"{path.name}: {rows[0].get('error', 'another score')}"


def _scores(rows: list[dict[str, Any]]) -> list[Any]:
    names = ("score", "val", "best_round", "rounds", "initial_weights")
    return [[row.get(name) for name in names] for row in rows]


def _weights_of_features(folder: Path) -> list[torch.Tensor]:
    torch.manual_seed(3)
    quiet_trainer(max_epochs=1, callbacks=[FrozenPrefixCache(folder, 16)]).fit(module := FrozenNet(), Images())
    return list(module.state_dict().values())


def flip_features(folder: Path, rng: random.Random) -> str | None:
    """Flip a bit of stored features, or of those of a run that was killed."""
    whole = _weights_of_features(folder)
    path = _flipped([*folder.glob("*.npy")], rng)
    if int(folder.name) % 2:
        path = path.rename(path.with_suffix(".part"))
    try:
        got = _weights_of_features(folder)
    except Exception as error:
        return None if path.name in str(error) else f"{type(error).__name__}: {error}"
    return None if all(map(torch.equal, got, whole)) else f"other weights after a flip in {path.name}"


def flip_partitions(folder: Path, rng: random.Random) -> str | None:
    """Flip a bit of a partition's file."""
    partition = Partition(tuple(np.array_split(np.random.default_rng(0).permutation(500), 10)))
    path = folder / f"partition.{rng.choice(['json', 'parquet'])}"
    partition.save(path)
    _flipped([path], rng)
    try:
        got = Partition.load(path)
    except Exception as error:
        return None if path.name in str(error) else f"{type(error).__name__}: {error}"
    return None if got == partition else f"{path.name} is another partition"


def flip_json(folder: Path, rng: random.Random) -> str | None:
    """Flip a bit of a JSON file of a finished table; the table, and what its report reads, stay the same."""
    whole = _finished(folder.parent, 2)
    out = Path(shutil.copytree(whole, folder / "out"))
    path = _flipped([out / "table.json", *out.glob("cells/*/re*.json"), *out.glob("cells/*/ru*.json")], rng)
    try:
        about = _about(out)
    except Exception as error:
        about = path.name in str(error) or f"{type(error).__name__}: {error}"
    try:
        run(table(rounds=2), out)
    except Exception as error:
        return f"{path.name}: {type(error).__name__}: {error}"
    if (out / "results.csv").read_bytes() != (whole / "results.csv").read_bytes():
        return f"{path.name}: other results"
    return None if about is True or about == _about(whole) else f"{path.name}: the report reads {about}"


def _about(folder: Path) -> Any:
    results = read_results(folder)
    return results.table, results.scored.to_csv()


# ---- programs ----


def fill_temporary_folders(folder: Path, rng: random.Random) -> str | None:
    """Refuse each new file in the temporary folder; a fit whose own folder has room goes on."""
    place = str(folder / "temporary")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(place):
            raise OSError(errno.ENOSPC, "No space left on device")

    def train() -> None:
        tempfile.tempdir = place
        sys.addaudithook(refuse)
        fit(folder, rounds=4)

    Path(place).mkdir()
    child = Forked(train, folder / "log")
    status = child.wait(_PATIENCE)
    return None if status == 0 and (folder / "last.ckpt").exists() else f"the fit ended with {status}"


def fit(folder: Path, rounds: int, seconds: float = 0.0) -> None:
    """Train with checkpoints of both kinds."""
    callbacks = [
        FedAvg(4, seed=1, executor="sequential"),
        FederatedCheckpoint(folder, save_top_k=1, monitor="fed/models_sent", mode="max"),
        ModelCheckpoint(folder / "lightning"),
        Slow(seconds),
    ]
    trainer = quiet_trainer(max_epochs=rounds, callbacks=callbacks, enable_checkpointing=True)
    trainer.fit(Net(), datamodule=data())


def end_programs(folder: Path, rng: random.Random) -> str | None:
    """Send SIGTERM to a script with a fit, and to ``fl-lightning run``; the status is 143, and all processes end."""

    def as_program(function: Callable[[], object]) -> None:
        try:
            status = function()
        except SystemExit as end:
            status = end.code
        os._exit(status if isinstance(status, int) else 0)

    number = int(folder.name)
    if number % 2:
        (folder / "table.yaml").write_text(yaml.safe_dump(table(("Slow", {"seconds": 0.2}), rounds=100)))
        words = ["run", str(folder / "table.yaml"), "--output", str(folder / "run"), "--workers", str(number // 2 % 2)]
        what, program, sign = "the command", partial(command, words), "run/cells/*/curve*.jsonl"
    else:
        what, program, sign = "a script", partial(fit, folder, 1000, 0.05), "last.ckpt"
    child = Forked(partial(as_program, program), folder / "log")
    wait_for(lambda: any(folder.glob(sign)), every=_OFTEN)
    threading.Event().wait(rng.uniform(0.0, 0.5))
    os.kill(child.process.pid, signal.SIGTERM)
    status = child.wait(_PATIENCE)
    child.kill()
    return None if status == 143 else f"{what} ended with status {status}"


KINDS: dict[str, tuple[Harm, int, str]] = {
    "claims": (kill_while_claiming, 50, "SIGKILLs while a cell is claimed"),
    "stops": (stop_runners, 4, "runners that stand still for longer than their lease"),
    "clocks": (turn_clocks_back, 1, "clocks that go back by hours"),
    "workers": (stop_workers, 2, "workers that stand still"),
    "checkpoints": (flip_checkpoints, 10, "flipped bits of a cell's checkpoints"),
    "features": (flip_features, 10, "flipped bits of stored features"),
    "partitions": (flip_partitions, 100, "flipped bits of partition files"),
    "json": (flip_json, 10, "flipped bits of a table's JSON files"),
    "temporary": (fill_temporary_folders, 2, "full temporary folders"),
    "programs": (end_programs, 4, "SIGTERMs of scripts and of the command"),
}


def main(argv: list[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return, by kind, how many attempts there were, and how many were lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws places and moments; default: 0")
    for name, (_, count, text) in KINDS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=f"{text}; default: {count}")
    options = vars(parser.parse_args(argv))
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    claims.LEASE = 1.0
    counts = {}
    with tempfile.TemporaryDirectory(prefix="cluster-") as place, warnings.catch_warnings(action="ignore"):
        print(f"{'':55}{'attempts':>9}{'survived':>9}{'lost':>6}")
        for name, (harm, _, text) in KINDS.items():
            rng = random.Random(f"{options['seed']} {name}")
            outcomes = []
            for number in range(options[name]):
                folder = Path(place, name, str(number))
                folder.mkdir(parents=True)
                outcomes.append(harm(folder, rng))
            problems = [outcome for outcome in outcomes if outcome is not None]
            print(f"{text:55}{len(outcomes):>9}{len(outcomes) - len(problems):>9}{len(problems):>6}", flush=True)
            for problem in list(dict.fromkeys(problems))[:3]:
                print(f"    {problem}", flush=True)
            counts[name] = len(outcomes), len(problems)
    return counts


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(int(any(lost for _, lost in main().values())))
