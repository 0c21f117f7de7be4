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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import lightning as L
import numpy as np
import torch
import yaml
from experiment.conftest import run_here
from helpers.algorithms import Net, data
from helpers.forking import Forked, in_child
from helpers.small_table import small
from helpers.toys import quiet_trainer
from helpers.waiting import wait_for
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import TensorDataset

from fl_lightning import FedAvg, FederatedCheckpoint, FrozenPrefixCache
from fl_lightning.command import main as command
from fl_lightning.data import ImageDataModule, SampleSplit, Source
from fl_lightning.experiment import claims
from fl_lightning.models import Classifier
from fl_lightning.models.frozen import FrozenPrefix
from fl_lightning.partitioners import IIDPartitioner, Partition
from fl_lightning.report.results import read_results

Outcomes = Iterator[str | None]  # once each, what is wrong, or ``None``
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


def flip(path: Path, rng: random.Random) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


# ---- claims ----


def kill_while_claiming(folder: Path, rng: random.Random) -> Outcomes:
    """Kill a process at one of the lines that it runs to claim a cell; another one must get the cell."""

    def take(cell: Path, at: int) -> None:
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

    folder.mkdir()
    in_child(take, folder, 0)
    number = int((folder / "lines").read_text())
    for trial in itertools.count():
        cell = folder / str(trial)
        cell.mkdir()
        at = rng.randint(1, number)
        in_child(take, cell, at)
        other = claims.Claims(lambda lost: None)
        is_taken = wait_for(lambda other=other, cell=cell: other.take(cell) is not None, 3.0, _OFTEN)
        yield None if is_taken else f"nobody gets the cell after a kill at line {at} of {number}"


def stop_runners(folder: Path, rng: random.Random) -> Outcomes:
    """Let a runner, or a node, stand still for longer than its lease, and go on beside the one that took over."""
    content = table(("Slow", {"seconds": 0.1}), rounds=12)
    whole = folder / "whole"
    run(content, whole)
    names = [path.relative_to(whole) for path in (whole / "results.csv", *whole.glob("cells/*/curve.csv"))]
    for trial in itertools.count():
        out = folder / str(trial)
        out.mkdir(parents=True)
        workers = trial % 2  # 0: the cell stands still with its runner, 1: it goes on in a process of its own
        first = Forked(partial(run, content, out, workers), out / "first.log")
        wait_for(lambda out=out: list(out.glob("cells/*/curve*.jsonl")), every=_OFTEN)
        threading.Event().wait(rng.uniform(0.0, 1.0))
        os.kill(first.process.pid, signal.SIGSTOP)
        second = Forked(partial(run, content, out, workers), out / "second.log")
        threading.Event().wait(claims.LEASE + rng.uniform(0.5, 2.0))
        os.kill(first.process.pid, signal.SIGCONT)
        statuses = [each.wait(_PATIENCE) for each in (first, second)]
        for each in (first, second):
            each.kill()
        expected = [(whole / name).read_bytes() for name in names]
        got = [(out / name).read_bytes() if (out / name).exists() else b"" for name in names]
        if statuses != [0, 0]:
            yield f"the runners ended with {statuses}: {first.output()[-500:]} {second.output()[-500:]}"
        else:
            yield None if got == expected else "results differ"


def turn_clocks_back(folder: Path, rng: random.Random) -> Outcomes:
    """Let the clock go back by an hour each time; a cell that fails is tried once."""
    for trial in itertools.count():
        tries = folder / f"tries-{trial}"
        content = table(("Fails", {"path": str(tries), "at_round": 1, "times": 1000}), rounds=2)

        def back(content: dict[str, Any] = content, out: Path = folder / str(trial)) -> None:
            begin, hours = time.time(), itertools.count()
            time.time = lambda: begin - 3600 * next(hours)  # type: ignore[assignment]
            run(content, out)

        (folder / str(trial)).mkdir(parents=True)
        child = Forked(back, folder / str(trial) / "log")
        child.wait(_PATIENCE)
        child.kill()
        number = tries.read_text().count("\n") if tries.exists() else 0
        yield None if number == 1 else f"{number} attempts: {child.output()[-500:]}"


def stop_workers(folder: Path, rng: random.Random) -> Outcomes:
    """Stop a worker for good; ``cell_timeout`` must end it."""
    for trial in itertools.count():
        out = folder / str(trial)
        out.mkdir(parents=True)
        limit = rng.uniform(3.0, 5.0)  # seconds, in which the worker comes to stand still
        child = Forked(partial(run, table(("StandsStill", {})), out, 1, cell_timeout=limit), out / "log")
        status = child.wait(_PATIENCE)
        child.kill()
        yield None if status == 0 else f"the run ended with {status}"


# ---- files ----


def flip_checkpoints(folder: Path, rng: random.Random) -> Outcomes:
    """Flip a bit of a checkpoint from which a cell goes on."""
    expected = _scores(run(table(), folder / "whole"))
    content = table(("Fails", {"path": str(folder / "marker"), "at_round": 4, "times": 1}))
    out = folder / "out"
    run(content, out)
    kept = Path(shutil.copytree(out, folder / "kept"))
    while True:
        shutil.rmtree(out)
        shutil.copytree(kept, out)
        path = rng.choice(sorted(out.glob("cells/*/*.ckpt")))
        flip(path, rng)
        try:
            rows = run(content, out)
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
            continue
        if rows[0]["status"] == "failed" and path.name in rows[0]["error"]:
            yield None
        else:
            yield None if _scores(rows) == expected else f"{path.name}: {rows[0].get('error', 'another score')}"


def _scores(rows: list[dict[str, Any]]) -> list[Any]:
    names = ("score", "val", "best_round", "rounds", "initial_weights")
    return [[row.get(name) for name in names] for row in rows]


class Features(Classifier):
    """A frozen convolution, then a trained layer."""

    def __init__(self) -> None:
        super().__init__(num_classes=3, lr=0.1)
        torch.manual_seed(0)
        self.prefix = FrozenPrefix(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.prefix(x))


class Images(ImageDataModule):
    """Fifty-six small images."""

    mean, std = (0.0,), (1.0,)

    def __init__(self) -> None:
        super().__init__(IIDPartitioner(4), batch_size=16, split=SampleSplit(1 / 7, 1 / 7))

    def load(self) -> Source:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(256, (56, 3, 8, 8), dtype=torch.uint8, generator=generator)
        return Source(TensorDataset(images, torch.randint(3, (56,), generator=generator)))


def flip_features(folder: Path, rng: random.Random) -> Outcomes:
    """Flip a bit of stored features, or of those of a run that was killed."""

    def fit() -> list[torch.Tensor]:
        torch.manual_seed(3)
        module = Features()
        quiet_trainer(max_epochs=1, callbacks=[FrozenPrefixCache(folder, 16)]).fit(module, datamodule=Images())
        return list(module.state_dict().values())

    whole = fit()
    for trial in itertools.count():
        [path] = folder.glob("*.npy")
        flip(path, rng)
        if trial % 2:
            path = path.rename(path.with_suffix(".part"))
        try:
            got = fit()
        except Exception as error:
            yield None if path.name in str(error) else f"{type(error).__name__}: {error}"
            shutil.rmtree(folder)
            fit()
            continue
        yield None if all(map(torch.equal, got, whole)) else f"other weights after a flip in {path.name}"
        if not all(map(torch.equal, got, whole)):
            shutil.rmtree(folder)
            fit()


def flip_partitions(folder: Path, rng: random.Random) -> Outcomes:
    """Flip a bit of a partition's file."""
    order = np.random.default_rng(0).permutation(500)
    partition = Partition(tuple(np.array_split(order, 10)))
    while True:
        path = folder / f"partition.{rng.choice(['json', 'parquet'])}"
        path.unlink(missing_ok=True)
        partition.save(path)
        flip(path, rng)
        try:
            got = Partition.load(path)
        except Exception as error:
            yield None if path.name in str(error) else f"{type(error).__name__}: {error}"
        else:
            yield None if got == partition else f"{path.name} is another partition"


def flip_json(folder: Path, rng: random.Random) -> Outcomes:
    """Flip a bit of a JSON file of a finished table; the table, and what its report reads, stay the same."""
    kept = folder / "kept"
    run(table(rounds=2), kept)
    before = (kept / "results.csv").read_bytes()
    while True:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(kept, out)
        path = rng.choice(
            [out / "table.json", *sorted(out.glob("cells/*/re*.json")), *sorted(out.glob("cells/*/ru*.json"))]
        )
        flip(path, rng)
        try:
            about = _about(out)
        except Exception as error:
            about = path.name in str(error) or f"{type(error).__name__}: {error}"
        try:
            run(table(rounds=2), out)
        except Exception as error:
            yield f"{path.name}: {type(error).__name__}: {error}"
            continue
        if (out / "results.csv").read_bytes() != before:
            yield f"{path.name}: other results"
        else:
            yield None if about is True or about == _about(kept) else f"{path.name}: the report reads {about}"


def _about(folder: Path) -> Any:
    results = read_results(folder)
    return results.table, results.scored.to_csv()


# ---- programs ----


def fill_temporary_folders(folder: Path, rng: random.Random) -> Outcomes:
    """Refuse each new file in the temporary folder; a fit whose own folder has room goes on."""
    place = str(folder / "temporary")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(place):
            raise OSError(errno.ENOSPC, "No space left on device")

    def train(out: Path) -> None:
        tempfile.tempdir = place
        sys.addaudithook(refuse)
        fit(out, rounds=4)

    for trial in itertools.count():
        Path(place).mkdir(parents=True, exist_ok=True)
        out = folder / str(trial)
        out.mkdir()
        child = Forked(partial(train, out), out / "log")
        status = child.wait(_PATIENCE)
        yield None if status == 0 and (out / "last.ckpt").exists() else f"the fit ended with {status}"


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


def end_programs(folder: Path, rng: random.Random) -> Outcomes:
    """Send SIGTERM to a script with a fit, and to ``fl-lightning run``; the status is 143, and all processes end."""

    def as_program(function: Callable[[], object]) -> None:
        try:
            status = function()
        except SystemExit as end:
            status = end.code
        os._exit(status if isinstance(status, int) else 0)

    for trial in itertools.count():
        out = folder / str(trial)
        out.mkdir(parents=True)
        if trial % 2:
            (out / "table.yaml").write_text(yaml.safe_dump(table(("Slow", {"seconds": 0.2}), rounds=100)))
            words = ["run", str(out / "table.yaml"), "--output", str(out / "run"), "--workers", str(trial // 2 % 2)]
            child = Forked(partial(as_program, partial(command, words)), out / "log")
            started = partial(_any, out, "run/cells/*/curve*.jsonl")
        else:
            child = Forked(partial(as_program, partial(fit, out, 1000, 0.05)), out / "log")
            started = partial(_any, out, "last.ckpt")
        wait_for(started, every=_OFTEN)
        threading.Event().wait(rng.uniform(0.0, 0.5))
        os.kill(child.process.pid, signal.SIGTERM)
        status = child.wait(_PATIENCE)
        child.kill()
        yield None if status == 143 else f"{'the command' if trial % 2 else 'a script'} ended with status {status}"


def _any(folder: Path, pattern: str) -> bool:
    return any(folder.glob(pattern))


KINDS: dict[str, tuple[Callable[[Path, random.Random], Outcomes], int, str]] = {
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
            folder = Path(place) / name
            if name != "claims":
                folder.mkdir()
            outcomes = list(itertools.islice(harm(folder, rng), options[name]))
            problems = [outcome for outcome in outcomes if outcome is not None]
            print(f"{text:55}{len(outcomes):>9}{len(outcomes) - len(problems):>9}{len(problems):>6}", flush=True)
            for problem in list(dict.fromkeys(problems))[:3]:
                print(f"    {problem}", flush=True)
            counts[name] = len(outcomes), len(problems)
    return counts


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(int(any(lost for _, lost in main().values())))
