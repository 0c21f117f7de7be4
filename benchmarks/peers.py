"""Compares rounds of the library with those of a plain loop, of FedJAX and of pfl-research, on the same arrays.

    OMP_NUM_THREADS=1 python benchmarks/peers.py [--rows W1 W2] [--rounds 24] [--loss-alone]
        [--fedjax fedjax/bin/python] [--pfl pfl/bin/python]

All go in turn, each in its own process, with the same clients in every round, and are counted by processor time. The
first two rounds, in which steps are captured and compiled, are left out of the medians; the column *all* has the
ratios of whole fits.

FedJAX and pfl have environments of their own, made once; without one, its column is left out::

    python -m venv fedjax && fedjax/bin/pip install fedjax==0.0.17 jax==0.10.2
    python -m venv pfl && pfl/bin/pip install pfl==0.6.0 torch==2.14.1

The library's module computes its accuracy in each step, and logs two values, which the others do not; with
``--loss-alone`` it logs its loss.

Rows: W1, W2, W3, W7, H1, D1 and N1 as in ``workloads.py``; H3, 100 very unequal clients of a 784-128-10 perceptron
with layer normalisation, GELU, dropout and Adam; F1, the published row of FedLab (784-200-200-10, 50 of 100 clients,
5 epochs, batches of 100).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import fits
import numpy as np
from federations import WORKLOADS, Clients, make_clients, make_network
from plain_loop import CLOCKS, LoopProcess, start_loop
from rows import ask, tell
from torch import nn

ROWS = ("W1", "W2", "H1", "H3", "W3", "N1", "D1", "W7", "F1")
#: Rounds that are left out of the medians.
_FIRST = 2
_FOLDER = Path(__file__).parent
#: One thread for what JAX computes, as for torch.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


def write_workload(name: str, clients: Clients, folder: Path) -> None:
    """Write a workload's arrays, and what says its network and round, for processes without torch."""
    network = make_network(name)
    arrays: dict[str, Any] = {}
    for number, parameter in enumerate(network.parameters()):
        arrays[f"weight{number}"] = parameter.detach().numpy()
    for number, (x, y) in enumerate(clients):
        arrays[f"x{number}"] = x.numpy()
        arrays[f"y{number}"] = y.numpy()
    np.savez(folder / "arrays.npz", **arrays)
    layers: list[dict[str, Any]] = []
    for layer in network:  # type: ignore[attr-defined]
        described: dict[str, Any] = {"kind": type(layer).__name__}
        if isinstance(layer, nn.Dropout):
            described["p"] = layer.p
        layers.append(described)
    work = WORKLOADS[name]
    described = {
        "name": name,
        "per_round": work.per_round,
        "weights": len(list(network.parameters())),
        "clients": len(clients),
        "layers": layers,
        "batch_size": work.batch_size,
        "lr": work.lr,
        "optimizer": work.optimizer,
        "epochs": work.epochs,
    }
    (folder / "work.json").write_text(json.dumps(described))


def one_row(options: argparse.Namespace) -> None:
    """Measure one row in this process and print it as JSON."""
    name = options.one
    clients = make_clients(WORKLOADS[name])
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_workload(name, clients, folder)
        environment = os.environ | _ENVIRONMENT
        beside = [start_loop(name, clock="processor")]
        for peer in ("fedjax", "pfl"):
            python = getattr(options, peer)
            if python:
                beside.append(LoopProcess([python, str(_FOLDER / f"{peer}_rounds.py"), str(folder)], environment))
        fits.fit(
            name,
            WORKLOADS[name],
            clients,
            options.executor,
            tell,
            {"clock": CLOCKS["processor"], "beside": beside},
            fits.first_samples(clients, 10),
            loss_alone=options.loss_alone,
            max_epochs=options.rounds,
            accelerator="cpu",
            devices=1,
            check_val_every_n_epoch=options.rounds,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--loss-alone", action="store_true", help="the library's module logs its loss alone")
    parser.add_argument("--executor", default="auto", help="how clients of the library are trained")
    parser.add_argument("--fedjax", help="the Python of FedJAX's environment")
    parser.add_argument("--pfl", help="the Python of pfl's environment")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_row(options)
        return
    columns = ["fl-lightning", "plain"]
    columns += [peer for peer in ("fedjax", "pfl") if getattr(options, peer)]
    for peer in ("fedjax", "pfl"):
        if not getattr(options, peer):
            print(f"{peer} is left out: --{peer} names the Python of its environment, which --help says how to make.")
    print(f"{'':4}" + "".join(f"{column:>14}{'ratio':>7}{'all':>7}" for column in columns))
    for name in options.rows:
        print_row(name, options)


def print_row(name: str, options: argparse.Namespace) -> None:
    """Measure a row in another process, and print its milliseconds a round and ratios to the plain loop."""
    arguments = ["--one", name, "--rounds", str(options.rounds), "--executor", options.executor]
    if options.loss_alone:
        arguments.append("--loss-alone")
    for peer in ("fedjax", "pfl"):
        if getattr(options, peer):
            arguments += [f"--{peer}", getattr(options, peer)]
    row = ask(__file__, arguments, name)
    if row is None:
        return
    columns = [row["rounds"], *zip(*row["beside"], strict=True)]
    plain = columns[1]
    line = f"{name:4}"
    for column in columns:
        pairs = zip(column[_FIRST:], plain[_FIRST:], strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        line += f"{1e3 * statistics.median(column[_FIRST:]):14.1f}{ratio:7.2f}{sum(column) / sum(plain):7.2f}"
    print(line, row["used"], flush=True)


if __name__ == "__main__":
    main()
