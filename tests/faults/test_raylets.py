"""A node of a Ray cluster is killed in the middle of a table: two raylets on this machine, started as users do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import psutil
import pytest
import yaml
from experiment.conftest import run_here
from helpers.small_table import small
from helpers.waiting import wait_for
from lightning.pytorch.callbacks import Callback

from fl_lightning.experiment.files import read_json_if_there

# Ray makes another address of 127.0.0.1. It leaves these as they are, and Linux answers for all of them.
HEAD = "127.0.0.2"
SECOND = "127.0.0.3"
PATIENCE = 240.0  # seconds, also on a busy machine
PROJECT = Path(__file__).parents[2]


class Hold(Callback):
    """Keeps the second node in the middle of a fit until it is killed, and the first one until the second is there.

    Args:
        marker: File that says that the second node is held.
        at_round: The round at whose end fits are held.
    """

    def __init__(self, marker: str, at_round: int) -> None:
        self.marker, self.at_round = Path(marker), at_round

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        node = os.environ.get("NODE")
        if node is None or trainer.current_epoch + 1 != self.at_round:
            return
        if node == SECOND:
            self.marker.touch()
            signal.pause()
        assert wait_for(self.marker.exists, PATIENCE)


class Cluster:
    """Nodes of Ray on this machine.

    Args:
        folder: Folder for the files of Ray. Its name is short, since paths of sockets are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind((HEAD, 0))
            port = free.getsockname()[1]
        self.address = f"{HEAD}:{port}"
        # The nodes find the callback of this file.
        path = [str(PROJECT), str(PROJECT / "tests"), os.environ.get("PYTHONPATH", "")]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CLUSTER": str(folder)}

    def start(self, node: str) -> None:
        """Start a node with one place for a task; skip the test if that is not possible."""
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address", node, "--num-cpus", "1"]
        words += ["--temp-dir", str(self.folder), "--object-store-memory", "100000000", "--disable-usage-stats"]
        if node == HEAD:
            words += ["--head", "--port", self.address.partition(":")[2], "--include-dashboard", "false"]
        else:
            words += ["--address", self.address]
        log = self.folder / f"{node}.log"
        with log.open("w") as output:
            # What it starts inherits the output, so a pipe would never end.
            ended = subprocess.run(
                words,
                env={**self.environment, "NODE": node},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE,
            )
        if ended.returncode:
            pytest.skip(f"Ray cannot start a node at {node}: {log.read_text()[-500:]}")

    def processes(self, **variables: str) -> list[psutil.Process]:
        """Return the processes that were started with the environment of this cluster, and further variables."""
        wanted = {"CLUSTER": str(self.folder), **variables}.items()
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and wanted <= process.environ().items():
                    found.append(process)
        return found

    def kill(self, names: str = "", **variables: str) -> None:
        """Kill processes at once, and wait until they have ended.

        Args:
            names: Part of their names.
            variables: Variables of their environment.
        """
        processes = [process for process in self.processes(**variables) if names in process.name()]
        assert processes
        # None of them sees the others end.
        for harm in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with suppress(psutil.Error):
                    process.send_signal(harm)
        assert wait_for(lambda: not set(processes) & set(self.processes(**variables)), PATIENCE)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray")
    if sys.platform != "linux":
        pytest.skip("Two raylets on one machine need two of Linux's loopback addresses.")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start(HEAD)
            cluster.start(SECOND)
            yield cluster
        finally:
            if cluster.processes():
                cluster.kill()


@pytest.mark.long
@pytest.mark.parametrize("killed", ["raylet", ""], ids=["its raylet", "all its processes"])
def test_a_table_ends_with_the_same_bytes_when_a_node_is_killed(cluster: Cluster, tmp_path: Path, killed: str) -> None:
    marker = tmp_path / "held"
    callback = {"class_path": "faults.test_raylets.Hold", "init_args": {"marker": str(marker), "at_round": 4}}
    trainer = {"max_epochs": 6, "accelerator": "cpu"}
    table: dict[str, Any] = small(callbacks=[callback], seeds=[0, 1, 2], trainer=trainer)
    del table["methods"]["RADFed"]
    whole = run_here(table, tmp_path / "whole")
    assert [row["status"] for row in whole.rows] == ["finished"] * 3

    # Ray runs the table; one cell is held on each node, and then the second node is killed.
    out = tmp_path / "out"
    log = tmp_path / "log"
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    words = [sys.executable, "-m", "fl_lightning.command", "run", str(tmp_path / "table.yaml")]
    words += ["--output", str(out), "--checkpoint-seconds", "0"]
    words += ["--workers", "2", "--engine", "ray", "--engine-options"]
    words += [f"address={cluster.address}", f"node_ip_address={HEAD}", "num_cpus=1"]
    with log.open("w") as output:
        command = subprocess.Popen(words, env=cluster.environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        assert wait_for(lambda: marker.exists() or command.poll() is not None, PATIENCE)
        assert marker.exists(), log.read_text()
        cluster.kill(killed, NODE=SECOND)
        assert command.wait(PATIENCE) == 0, log.read_text()
    finally:
        command.kill()
        command.wait()

    # Each cell has ended once, and the one that was held went on from its checkpoint.
    assert (out / "results.csv").read_bytes() == (whole.folder / "results.csv").read_bytes()
    assert log.read_text().count(" finished: digits, ") == 3
    about = [read_json_if_there(path) or {} for path in out.glob("cells/*/run.json")]
    assert sorted(each["resumed"] for each in about) == [False, False, True]
    assert not list(out.glob("cells/*/*claim*"))
