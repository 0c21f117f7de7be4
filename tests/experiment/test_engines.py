"""Runners that engines start: jobs of SLURM, tasks of Ray."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from experiment.conftest import run_here
from helpers.small_table import small

from fl_lightning.experiment import run_table, runner
from fl_lightning.experiment.engines import Engine, start_slurm


@pytest.mark.parametrize("cluster", ["debug", pytest.param("local", marks=pytest.mark.long)])
def test_jobs_give_what_one_process_gives(
    tmp_path: Path, finished_table: Any, cluster: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
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
    pytest.importorskip("submitit")
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


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("out", {"engine": "dask"}),
        ("out", {"engine_options": {"num_gpus": 1}}),
        ("out", {"engine": "slurm", "devices": [0]}),
        ("out", {"engine": "ray", "workers": 0}),
        ("s3://bucket/out", {}),
        (Path("s3://bucket/out"), {}),
        ("out", {"workers": 0, "cell_timeout": 1.0}),
        ("out", {"workers": 0, "memory_limit": 1.0}),
        ("out", {"console": 3}),
        (3, {}),
    ],
)
def test_what_cannot_work_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: Any, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = list(options or {"output": None})[-1]
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        run_table(small(), output, **options)
    assert not list(tmp_path.iterdir())
