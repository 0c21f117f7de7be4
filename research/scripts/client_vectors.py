"""Memory of the vectors that clients keep: 10,000 clients of a 200,000-parameter model, 50 a round.

python research/scripts/client_vectors.py --state_dir DIR       # in a memory-mapped file
python research/scripts/client_vectors.py --clients 1000             # in memory
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Layout


def own_memory() -> float:
    """Return this process's memory in GB, without what the system can drop because a file holds it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e6
    return float("nan")


def main() -> None:
    """Let every client hand a vector in once, then read each again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--parameters", type=int, default=200_000)
    parser.add_argument("--per_round", type=int, default=50)
    parser.add_argument("--state_dir", type=Path, default=None)
    options = parser.parse_args()
    model = torch.zeros(options.parameters)
    federation = Federation(
        np.ones(options.clients), model, Layout.of_parameters(options.parameters), state_dir=options.state_dir
    )
    vectors = ClientVectors(federation, model)
    before = own_memory()
    began = time.perf_counter()
    peak = before
    for start in range(0, options.clients, options.per_round):
        for client in range(start, start + options.per_round):
            vectors[client] = torch.full_like(model, float(client))
        peak = max(peak, own_memory())
        vectors.commit()
        vectors.keep()
    written = time.perf_counter() - began
    wrong = sum(float(vectors[client][-1]) != client for client in range(options.clients))
    read = time.perf_counter() - began - written
    print(
        f"{options.clients} clients x {options.parameters} values: {options.clients * options.parameters * 4e-9:.1f} GB"
    )
    print(f"own memory: {before:.2f} GB before, {peak:.2f} GB at most; {wrong} clients read back wrongly")
    print(f"{1e3 * written / options.clients:.2f} ms a client to write, {1e3 * read / options.clients:.2f} ms to read")


if __name__ == "__main__":
    main()
