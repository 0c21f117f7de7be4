"""Rows of other frameworks for the table of ``workloads.py``: the same clients, network, SGD and rounds.

Each runs in its own best mode on one machine: pfl in one process, Flower's simulation with two Ray actors. A peer's
module is imported only when its row is measured; neither is a dependency of the project.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from plain_loop import PlainProcess, Rounds

WORKLOADS = ("W1", "W2", "W3")
# the packages that a peer imports, what installs them, and its processes that train
PEERS = {"flower": (("flwr", "ray"), '"flwr[simulation]"', 2), "pfl": (("pfl",), "pfl", 1)}


def installed_peers(peers: list[str]) -> list[str]:
    """Return the peers that are installed; say how to install the others."""
    found = []
    for peer in peers:
        packages, requirement, _ = PEERS[peer]
        if all(find_spec(package) for package in packages):
            found.append(peer)
        else:
            print(f"{peer} is not installed: pip install {requirement}")
    return found


def peer_rows(peers: list[str], name: str) -> list[tuple[str, int]]:
    """Return the rows of a workload, each a peer and its processes; say so where peers have no such workload."""
    if peers and name not in WORKLOADS:
        print(f"{name}: {' and '.join(peers)} have no such workload here, only {', '.join(WORKLOADS)}")
        return []
    return [(peer, PEERS[peer][2]) for peer in peers]


def train_peer(name: str, peer: str, processes: int, rounds: int, plain: PlainProcess) -> dict[str, Any]:
    """Train a workload for ``rounds`` + 1 rounds; return the pairs of seconds, the accuracy and what was used."""
    if peer == "pfl":
        from peer_pfl import train_pfl

        return train_pfl(name, rounds + 1, Rounds(plain))
    from peer_flower import train_flower

    return train_flower(name, processes, rounds + 1, Rounds(plain))
