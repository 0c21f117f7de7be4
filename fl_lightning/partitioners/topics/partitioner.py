"""The partition of van Lier 2018: clients are topics, and their samples diffuse."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from fl_lightning.arguments import check_count, check_instance, check_positive
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.topics.diffusion import DIFFUSION_SEED, check_homes, diffuse
from fl_lightning.partitioners.topics.graph import TopicGraph
from fl_lightning.representation import ShowsArguments

_IID_SEED = 510


class TopicGraphPartitioner(ShowsArguments):
    """Shares samples out by topic, after some steps of diffusion along the topics' relations (van Lier 2018).

    It is called with the home of each sample, its client in d_0 (:meth:`TopicGraph.homes`), as other partitioners are
    called with labels. The number of steps sets the heterogeneity: with 0 each topic keeps its own samples, with many
    the clients have similar mixes of classes. Sizes stay unequal, because topics with many relations keep more samples.

    Args:
        graph: Clients and their relations.
        steps: i of d_i, the number of steps of diffusion; ``"iid"`` for d_iid, which gives each sample to a client
            drawn uniformly.
        stay_weight: How many times likelier a sample stays than it goes to a certain neighbour.
        seed: Seed of the draws; ``None`` takes the thesis's, 42, or 510 for d_iid.

    Raises:
        TypeError: On call, if the homes are no integers.
        ValueError: If an argument is out of range; on call, if a home is no client or a client ends without samples.
    """

    shown_always: ClassVar[tuple[str, ...]] = ("steps", "seed")

    def __init__(
        self,
        graph: TopicGraph,
        steps: int | Literal["iid"] = 0,
        *,
        stay_weight: float = 2.0,
        seed: int | None = None,
    ) -> None:
        check_instance("graph", graph, TopicGraph, "`pick_client_topics` makes one.")
        if not isinstance(steps, str) or steps != "iid":
            check_count("steps", steps, minimum=0, hint="'iid' gives each sample to a random client.")
        check_positive("stay_weight", stay_weight)
        self.seed = (_IID_SEED if steps == "iid" else DIFFUSION_SEED) if seed is None else seed
        check_count("seed", self.seed, minimum=0)
        self.graph = graph
        self.steps = steps
        self.stay_weight = stay_weight

    @property
    def num_clients(self) -> int:
        """Number of clients, K."""
        return self.graph.num_clients

    def __call__(self, homes: np.ndarray) -> Partition:
        """Return the partition of the samples with these homes, integers, shape (num_samples,)."""
        clients = self.clients(homes)
        sizes = np.bincount(clients, minlength=self.num_clients)
        if sizes.min() == 0:
            empty = int(sizes.argmin())
            raise ValueError(
                f"Client {empty} ({self.graph.topics[empty]}) has no samples with `steps` {self.steps!r} and `seed` "
                f"{self.seed}. Use more samples, fewer clients (a larger `min_samples`) or another seed."
            )
        return Partition(tuple(np.split(np.argsort(clients, kind="stable"), np.cumsum(sizes)[:-1])))

    def clients(self, homes: np.ndarray) -> np.ndarray:
        """Return the client of each sample, int64, shape (num_samples,)."""
        if self.steps == "iid":
            homes = check_homes(homes, self.graph)
            return np.random.default_rng(self.seed).integers(self.num_clients, size=len(homes))
        *_, clients = diffuse(self.graph, homes, self.steps, stay_weight=self.stay_weight, seed=self.seed)
        return clients
