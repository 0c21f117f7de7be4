"""Runners that engines start: jobs of SLURM, tasks of Ray."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# submitit configures logging when it is first imported, and so closes all handlers that tests have made by then
import submitit  # noqa: F401
from experiment.conftest import run_here
from helpers.small_table import small
from helpers.written import assert_as_in, told

from fl_lightning.experiment import run_table, runner
from fl_lightning.experiment.engines import Engine, start_engine, start_slurm


@pytest.mark.parametrize("cluster", ["debug", pytest.param("local", marks=pytest.mark.long)])
def test_jobs_give_what_one_process_gives(
    tmp_path: Path, finished_table: Any, cluster: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"cluster": cluster, "timeout_min": 10}
    text = run_here(small(), tmp_path, 2, engine="slurm", engine_options=options).text
    assert (tmp_path / "results.csv").read_bytes() == (finished_table.folder / "results.csv").read_bytes()
    assert text.count(" finished: digits, ") == 2
    assert text.startswith("Starting 2 runners by the engine 'slurm'.\n")
    assert text.count("The first runner is at work, after ") == 1
    # Jobs that have nothing to do any more are interrupted.
    assert "Traceback" not in capfd.readouterr().err


def test_a_user_is_told_that_no_runner_of_an_engine_is_at_work_yet(
    tmp_path: Path, finished_table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = finished_table.table
    results = run_here(rows, tmp_path)
    [*_, last] = results.rows
    waiting = tmp_path / "cells" / last["cell"]
    (waiting / "result.json").rename(tmp_path / "kept.json")
    looks = iter([False, False, True])

    class Job:
        def done(self) -> bool:
            if next(looks):
                (tmp_path / "kept.json").rename(waiting / "result.json")
            return False

    monkeypatch.setattr(runner, "_FIRST_WORD", 0.0)
    monkeypatch.setattr(runner, "start_engine", lambda *_: Engine([Job()], lambda: None, "Look there."))
    text = run_here(rows, tmp_path, 1, engine="ray").text
    assert re.search(r"No runner is at work yet, after .* s\. Look there\.\n(.*\n)*The first runner is at work", text)


def test_an_array_of_jobs_has_the_options_and_is_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/sent\necho Submitted batch job 12\n')
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    options = {"slurm_partition": "gpu", "timeout_min": 240, "gpus_per_node": 1, "slurm_account": "fl"}
    start_slurm(print, 3, tmp_path / "out", options)
    lines = (tmp_path / "sent").read_text().splitlines()
    for option in ("array=0-2%3", "partition=gpu", "time=240", "gpus-per-node=1", "account=fl", "open-mode=append"):
        assert f"#SBATCH --{option}" in lines
    assert any(line.startswith("#SBATCH --signal=USR2@") for line in lines)
    [command] = [line for line in lines if line.startswith("srun")]
    assert "-m submitit.core._submit" in command


@pytest.mark.long
def test_ray_runs_a_table_while_a_node_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    handler = signal.getsignal(signal.SIGTERM)  # Ray has its own
    table = small(seeds=list(range(20)), trainer={"max_epochs": 1, "accelerator": "cpu"}, select="last")
    whole, out = run_here(table, tmp_path / "whole"), tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    ended = threading.Event()

    def kill_at_half() -> None:
        while len(list(out.glob("cells/*/result.json"))) < 20 and not ended.wait(0.1):
            continue
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill_at_half)
    killer.start()
    try:
        options = {"address": cluster.address, "num_cpus": 1}
        text = run_here(table, out, 2, engine="ray", engine_options=options).text
    finally:
        ended.set()
        killer.join()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)
    assert (out / "results.csv").read_bytes() == (whole.folder / "results.csv").read_bytes()
    assert text.count(" finished: digits, ") == 40
    assert not list(out.glob("cells/*/claim*"))


REFUSED: list[tuple[Any, dict[str, Any]]] = [
    ("out", {"engine": "dask"}),
    ("out", {"engine_options": {"num_gpus": 1}}),
    ("out", {"engine": "slurm", "devices": [0]}),
    ("out", {"devices": []}),
    ("out", {"engine": "ray", "workers": 0}),
    ("s3://bucket/out", {}),
    (Path("s3://bucket/out"), {}),
    ("out", {"workers": 0, "cell_timeout": 1.0}),
    ("out", {"workers": 0, "memory_limit": 1.0}),
    ("out", {"workers": -1}),
    ("out", {"checkpoint_seconds": -1}),
    ("out", {"retries": 0.5}),
    ("out", {"console": 3}),
    (3, {}),
]


def test_what_cannot_work_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [told(partial(run_table, small(), output, **options), tmp_path) for output, options in REFUSED]
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="`engine_options`: Parameter 'gpus' need"):
        start_slurm(print, 1, tmp_path, {"cluster": "debug", "gpus": 1})
    ended = Engine([SimpleNamespace(done=lambda: True, result=print)], print, "")
    monkeypatch.setattr(runner, "start_engine", lambda *_: ended)
    lines.append(told(lambda: run_here(small(), tmp_path / "out", 1, engine="ray"), tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", None)
    lines.append(told(lambda: start_engine("slurm", print, 1, tmp_path, {}), tmp_path))
    assert_as_in(Path(__file__).with_name("test_engines.txt"), lines, tmp_path)
