"""Several models of the server, of which each client trains the one that suits it best (IFCA)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult, Task, further_tasks
from fl_lightning.parts.schedules.base import Play, Schedule
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count, Positive

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False, kw_only=True)
class Clusters(Schedule):
    """The server keeps several models, and each client trains the one whose loss on its data is least (IFCA).

    Ghosh et al. 2020, with averaging of models. Every client of a round receives all models. The model that is shown is
    the one that most clients of the round chose.

    Args:
        number: Number of clusters.
        spread: The first models differ: each tensor has normal noise of so many of its standard deviations.

    Attributes:
        models: The clusters' models.
        chosen: The cluster that each client chose last; -1 before.
    """

    runs_at = "both"
    number: Count
    spread: Positive = 1.0
    shows_client_models = True
    starts_from_server = False
    sends_choice = True

    @override
    def further_models(self, sent: int) -> int:
        """Return how many models clients receive besides the first one: they choose among all."""
        return (self.number - 1) * sent

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the results are to be merged in another way, or messages depend on those of another cluster."""
        for member in algorithm.chain.members:
            if member.remembers_messages:
                yield f"`exchange` cannot have {member!r} with {self!r}: what it owes a client is of another cluster."
        aggregation = algorithm.aggregation
        if not aggregation.is_weighted_mean:
            yield f"`aggregation` cannot be {aggregation!r}: clusters take the `WeightedMean` of their clients' models."
        self._weighting = aggregation.weighting
        if not algorithm.server_optimizer.replaces_model:
            yield f"The server optimizer cannot be {algorithm.server_optimizer!r}: means replace the clusters' models."

    @override
    def setup(self, federation: Federation) -> None:
        """Draw the clusters' first models."""
        layout = federation.layout
        parameters, buffers = layout.split(federation.model)
        deviations: list[Tensor] = []
        for tensor in layout.views(parameters):
            flat = tensor.flatten()
            deviations.append(flat.std(correction=0).expand_as(flat))
        deviation = torch.cat(deviations)
        models: list[Tensor] = []
        for cluster in range(self.number):
            generator = self.generator(None, cluster)
            noise = torch.randn(len(parameters), generator=generator, dtype=torch.float64).to(parameters)
            moved = parameters + self.spread * deviation * noise
            models.append(layout.joined(moved, buffers))
        self.models: list[Tensor]
        self.add_state("models", models)
        self.chosen: list[int]
        self.add_state("chosen", [-1] * federation.num_clients)

    @override
    def sent(self, task: Task, server: Server) -> Tensor:
        """Return the cluster's model: each in turn to be looked at, then the chosen one."""
        cluster = task.phase - 1 if task.phase else self.chosen[task.client]
        return self.models[cluster]

    @override
    def correction(self, client: LocalClient) -> None:
        """Compute the client's loss with a cluster's model."""
        self._losses[client.task.client, client.task.phase - 1] = client.loss()

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let clients choose, train, and average each cluster's models, weighted as the aggregation says."""
        self._losses: dict[tuple[int, int], float] = {}
        self._counts = [0] * self.number
        for cluster in range(self.number):
            for _ in (yield further_tasks(tasks, work=0, phase=cluster + 1)):
                pass
        losses: dict[tuple[int, int], float] = {}
        for share in self.federation.gather(self._losses):
            losses.update(share)
        # A client that is another machine looks and chooses there.
        for client in {client for client, _ in losses}:
            of_clusters = [losses[client, cluster] for cluster in range(self.number)]
            self._choose(client, of_clusters.index(min(of_clusters)))

        means = [RunningMean() for _ in self.models]
        for result in (yield tasks):
            mean = means[self.chosen[result.client]]
            mean.add(result.vector, result.weight(self._weighting))
        models: list[Tensor] = []
        for model, mean in zip(self.models, means, strict=True):
            merged, _ = mean.pop(self.federation, server.model)
            models.append(model if merged is None else merged.to(model.dtype))
        self.models = models
        if any(self._counts):
            largest = self._counts.index(max(self._counts))
            server.replace(self.models[largest])
        return server.model

    def _choose(self, client: int, cluster: int) -> None:
        """Note the cluster that a client chooses in the round."""
        self.chosen[client] = cluster
        self._counts[cluster] += 1

    @override
    def state_down(self, task: Task) -> dict[str, Tensor]:
        """Return the clusters' models, shape ``(clusters, size)``."""
        return {"models": torch.stack(self.models)}

    @override
    def take_state_down(self, state: Mapping[str, Tensor]) -> None:
        """Take the clusters' models."""
        self.models = list(state["models"])

    @override
    def state_up(self, result: ClientResult) -> dict[str, Tensor]:
        """Return the cluster that the client chose."""
        return {"chosen": torch.tensor(self.chosen[result.client])}

    @override
    def take_state_up(self, task: Task, state: Mapping[str, Tensor]) -> None:
        """Take the cluster that the client chose.

        Raises:
            ValueError: If there is none of that number.
        """
        chosen = int(state["chosen"])
        if not 0 <= chosen < self.number:
            raise ValueError(f"Client {task.client} chose cluster {chosen}, and there are {self.number} from 0.")
        self._choose(task.client, chosen)

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's models.

        Raises:
            ValueError: If there is another number of them.
        """
        if len(state["models"]) != self.number:
            raise ValueError(f"`clusters` must be the checkpoint's {len(state['models'])}, got {self.number}.")
        super().load_state_dict(state)

    @override
    def model_of(self, client: int, model: Tensor) -> Tensor:
        """Return the model of the cluster that the client chose."""
        cluster = self.chosen[client]
        return self.models[cluster] if cluster >= 0 else model
