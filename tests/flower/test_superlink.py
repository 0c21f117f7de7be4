"""A SuperLink and three SuperNodes on this machine: the bits of the simulation, and what survives a kill.

Each message starts a Python at a site, so that a round takes as long as a library is imported: some minutes a test.
Run them by `pytest -m flower`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import pytest
import torch

pytest.importorskip("flwr")

from helpers.sites import kept_in_simulation

APP = Path(__file__).parent / "app"
sys.path.insert(0, str(APP))
from bits import task  # noqa: E402

pytestmark = [pytest.mark.flower, pytest.mark.long]
ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
MOST_SECONDS = 3600
#: How long clients have for a round of some seconds, on a busy machine.
PATIENCE_SECONDS = 240.0


class Network:
    """A SuperLink and its SuperNodes; leaving it ends all processes that any of them has started.

    Args:
        folder: Where they write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.home = home = folder / "home"
        home.mkdir()
        address = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{address}')
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
        tools = os.pathsep.join([str(TOOLS), os.environ["PATH"]])
        self.environment = {**os.environ, **quiet, "FLWR_HOME": str(home), "PYTHONPATH": paths, "PATH": tools}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end_all()

    def _start_all(self) -> None:
        options = ["--port", str(self.port), "--disable-runtime-dependency-installation"]
        self.running["superlink"] = self._start("superlink", ["flower-superlink", "--insecure", *options])
        self._wait(lambda: _answers(self.port))
        for client in range(3):
            self.start_node(client)

    def _end_all(self) -> None:
        """Kill all processes that have this network's folder in their environment, also those in other groups."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == str(self.home):
                    process.kill()
        for started in self.running.values():
            started.wait()

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client."""
        address = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(_free_port())]
        command = ["flower-supernode", "--insecure", *address, "--node-config", f"client={client}"]
        self.running[f"node-{client}"] = self._start(f"node-{client}", command)

    def run(self, **config: Any) -> None:
        """Run the app, and wait until it is submitted."""
        given = {"folder": str(self.folder), **config}
        text = " ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in given.items()
        )
        subprocess.run(["flwr", "run", str(APP), "here", "--run-config", text], env=self.environment, check=True)

    def wait_for(self, name: str) -> None:
        """Wait until a file of the folder is there."""
        self._wait((self.folder / name).exists)

    def kill(self, name: str) -> None:
        """Kill a process and those that it started, without a chance to say goodbye."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _wait(self, is_there: Callable[[], bool]) -> None:
        """Wait for something, unless what it waits for has ended with an error."""
        deadline = time.monotonic() + MOST_SECONDS
        error = self.folder / "error"
        while not is_there():
            assert time.monotonic() < deadline
            assert not error.exists(), error.read_text()
            for name, process in self.running.items():
                assert process.poll() is None, (name, (self.folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.5)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("ab")
        return subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path) as started:
        yield started


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def kept_at_site(folder: Path, run: str, client: int) -> dict[str, np.ndarray]:
    path = folder / "kept" / f"client-{client}-{run}.npz"
    if not path.is_file():
        return {}
    with np.load(path) as file:
        start = file["values/turns"].item().split()[-1] + "/"
        return {name.partition("-")[2]: file[name] for name in file.files if name.startswith(start)}


def check(folder: Path, name: str, rounds: int, make: Any) -> Any:
    """Compare what came out of a fit with the simulation, and return that; look for secrets in all messages."""
    expected = make(executor="sequential")
    task.trainer(rounds, expected).fit(task.module(), datamodule=task.data_of(0, 1, 2))
    found = torch.load(folder / f"{name}.pt", weights_only=True)
    assert torch.equal(found["model"], expected.algorithm.server.model), name
    for client in range(3):
        kept = kept_at_site(folder, found["kept"], client)
        vectors = kept_in_simulation(expected, client)
        assert kept.keys() == vectors.keys(), name
        assert all(np.array_equal(kept[key], vectors[key]) for key in vectors), name
        secrets = [row.numpy().tobytes() for row in task.samples_of(client)[0]]
        if name in task.PERSONAL:
            # Three numbers in a row are found wherever they are.
            for vector in kept.values():
                secrets += [vector[place : place + 3].tobytes() for place in range(len(vector) - 2)]
            assert len(secrets) > len(task.samples_of(client)[0])
        sent = (folder / f"{name}.messages").read_bytes()
        assert len(sent) > 1000
        assert not [secret for secret in secrets if secret in sent], name
    return expected


def test_ten_methods_have_the_tensors_of_the_simulation_after_three_rounds(network: Network) -> None:
    names = [name for name in task.METHODS if name != "failures" and name not in task.SEVERAL]
    network.run(methods=",".join(names), rounds=3)
    network.wait_for("done")
    for name in names:
        expected = check(network.folder, name, 3, task.METHODS[name])
        found = torch.load(network.folder / f"{name}.pt", weights_only=True)
        assert found["traffic"] == vars(expected.algorithm.traffic), name
        down, up = found["bytes"]
        # The server computes the control variate that a client of SCAFFOLD would send; positions fill whole bytes.
        besides = 4 * 83 * 9 if name == "SCAFFOLD" else 0
        assert down == found["traffic"]["bits_down"] // 8
        assert 0 <= up + besides - found["traffic"]["bits_up"] // 8 <= 9


def test_methods_with_several_messages_in_a_round_have_the_tensors_of_the_simulation(network: Network) -> None:
    network.run(methods=",".join(task.SEVERAL), rounds=3)
    network.wait_for("done")
    for name in task.SEVERAL:
        expected = check(network.folder, name, 3, task.METHODS[name])
        found = torch.load(network.folder / f"{name}.pt", weights_only=True)
        assert found["traffic"] == vars(expected.algorithm.traffic), name


def test_a_silent_client_a_killed_super_node_and_a_killed_server_leave_the_bits_of_a_run_without_these_clients(
    network: Network,
) -> None:
    folder = network.folder
    config = {"methods": "failures", "rounds": 4, "timeout": PATIENCE_SECONDS}
    # In the first round client 2 answers too late.
    (folder / "trap-2").write_text(f"0 {PATIENCE_SECONDS + 20}")
    # In the second one the power of client 1 is cut, and comes back.
    (folder / "trap-1").write_text("1 6000")
    network.run(**config)
    network.wait_for("caught-1-1")
    network.kill("node-1")
    kill_written(folder / "caught-1-1")
    network.start_node(1)
    # In the fourth one the server is killed, after some clients have trained.
    (folder / "trap-2").write_text("3 6000")
    network.wait_for("caught-2-3")
    kill_written(folder / "server")
    kill_written(folder / "caught-2-3")
    network.run(**config)
    network.wait_for("done")
    check(folder, "failures", 4, partial(task.with_failures, [0, 1], [0, 2], [0, 1, 2], [0, 1, 2]))


def kill_written(path: Path) -> None:
    """Kill the process whose number is in a file."""
    os.kill(int(path.read_text()), signal.SIGKILL)
