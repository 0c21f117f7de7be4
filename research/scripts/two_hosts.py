"""Two hosts, as two network namespaces of this machine, train with ``torchrun``: the weights are those of one process.

    sudo python research/scripts/two_hosts.py

Makes the namespaces ``fl_host_0`` and ``fl_host_1``, joined by a cable, and takes them away again. Linux only, and only
for users who may make network namespaces.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ALGORITHMS = ("FedAvg", "RADFed", "FedDyn", "FedBuff")
HOSTS = ("fl_host_0", "fl_host_1")


def train(name: str, nodes: int, output: Path) -> None:
    """Train six rounds on 38 clients of unequal sizes and write the weights."""
    import lightning as L

    from fl_lightning import FedAvg, FedBuff, FedDyn, RADFed, TensorDataModule
    from fl_lightning.models import MLPClassifier

    generator = torch.Generator().manual_seed(0)
    sizes = [20 + 5 * k for k in range(38)]
    x = torch.randn(sum(sizes), 20, generator=generator).double()
    y = (x @ torch.randn(20, 10, generator=generator).double()).argmax(1)
    options: dict[str, Any] = {
        "clients_per_round": 8,
        "local_epochs": 2,
        "seed": 3,
        "executor": "vectorized",
    }
    made = {
        "FedAvg": lambda: FedAvg(**options),
        "RADFed": lambda: RADFed(2, **options),
        "FedDyn": lambda: FedDyn(0.1, **options),
        "FedBuff": lambda: FedBuff(4, **options),
    }
    torch.manual_seed(0)
    module = MLPClassifier(in_features=20, hidden=[32], num_classes=10, lr=0.1).double()
    trainer = L.Trainer(
        max_epochs=6,
        accelerator="cpu",
        devices=1,
        num_nodes=nodes,
        strategy="ddp" if nodes > 1 else "auto",
        callbacks=[made[name]()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    clients = list(zip(x.split(sizes), y.split(sizes), strict=True))
    trainer.fit(module, datamodule=TensorDataModule(clients))
    assert trainer.world_size == nodes
    if trainer.is_global_zero:
        torch.save(module.state_dict(), output)


@contextmanager
def two_hosts() -> Iterator[None]:
    """Two network namespaces with a cable between them."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "fl0", "type", "veth", "peer", "name", "fl1")
        for number, host in enumerate(HOSTS):
            ip("link", "set", f"fl{number}", "netns", host)
            ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"fl{number}")
            ip("-n", host, "link", "set", f"fl{number}", "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False)


def on_two_hosts(name: str, output: Path) -> None:
    """Run ``torchrun`` on both hosts."""
    running = []
    for number, host in enumerate(HOSTS):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(number)]
        torchrun += ["--master_addr", "10.77.0.1", "--master_port", "29511"]
        command = ["ip", "netns", "exec", host, *torchrun, __file__, "--train", name, "2", str(output)]
        running.append(subprocess.Popen(command, env={**os.environ, "GLOO_SOCKET_IFNAME": f"fl{number}"}))
    if any([process.wait() for process in running]):
        raise RuntimeError(f"{name} failed on two hosts.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train[0], int(options.train[1]), Path(options.train[2]))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, two_hosts():
        for name in ALGORITHMS:
            one, two = Path(folder, "one.pt"), Path(folder, "two.pt")
            subprocess.run([sys.executable, __file__, "--train", name, "1", str(one)], check=True)
            on_two_hosts(name, two)
            alone, joined = torch.load(one), torch.load(two)
            difference = max(float((alone[key] - joined[key]).abs().max()) for key in alone)
            print(f"{name:8} largest difference of a weight between one process and two hosts: {difference:.1e}")


if __name__ == "__main__":
    main()
