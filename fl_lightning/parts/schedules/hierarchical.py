"""Groups of clients under regional models, which the server merges now and then (HierFAVG).

With two groups and two inner rounds, of which the first group's clients are 0 and 1::

    round 0    0 and 1 train from the server's model; the first region's model is their mean
    round 1    0 and 1 train from that; it becomes their mean again
               the server moves to the mean of the regions' models, from which all begin again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.means import RunningMean
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.groups import Groups, members_of
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.schedules.base import Play, Schedule
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class Hierarchical(Schedule):
    """Groups of clients train a regional model each for some rounds, then the server merges these (HierFAVG).

    Liu et al. 2020; eq. (89), (90). In each inner round the clients of a group that were drawn start from the group's
    model, which then becomes the mean of theirs, weighted by their samples. Every ``inner_rounds`` rounds the
    aggregation gets a result for each group that was trained since the last time: ``vector`` is the group's model,
    ``received`` the server's, ``num_samples`` the samples of all clients of the group, and the client is -1. All groups
    go on from where the server then is.

    Equations are numbered as in ``docs/references.md``.

    Args:
        groups: The clients of each group; or the number of groups, which then are clients in a row.
        inner_rounds: kappa_2, rounds from one aggregation at the server to the next.
        evaluate: The model that is validated, checkpointed and tested between two aggregations: ``"virtual"`` is the
            mean of the groups' models, weighted by the samples of the groups (not fed back), ``"aggregate"`` the
            server's last model.

    Attributes:
        position: Rounds since the server's last aggregation.
        models: The models of the groups that were trained since then, by group.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if a client is not in one group.
    """

    runs_at = "server"
    sends_updates_alone = True
    groups: Groups
    inner_rounds: Count
    evaluate: Literal["virtual", "aggregate"] = "virtual"
    starts_from_server = False

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the aggregation counts steps of clients."""
        aggregation = algorithm.aggregation
        if aggregation.counts_on_momentum is not None or aggregation.needs_summed_lr:
            yield f"`aggregation` cannot be {aggregation!r}, which counts clients' steps, with {self!r}."

    @override
    def setup(self, federation: Federation) -> None:
        """Find the groups."""
        members = members_of(self.groups, federation.num_clients)
        self._members = members
        group_of = {client: group for group, clients in enumerate(members) for client in clients}
        #: The group of each client.
        self.group_of: list[int]
        self.add_state("group_of", [group_of[client] for client in range(federation.num_clients)])
        self.position: int
        self.add_state("position", 0)
        self.models: dict[int, Tensor]
        self.add_state("models", {})
        self._edge_models = (0, 0)

    @property
    @override
    def hides_clients(self) -> bool:
        return True

    @property
    @override
    def has_personal(self) -> bool:
        """Return false: clients are evaluated with the shown model."""
        return False

    @property
    @override
    def has_models_under_way(self) -> bool:
        """Whether groups hold models that the server has not merged."""
        return bool(self.models)

    @property
    @override
    def shows_aggregate(self) -> bool:
        """Whether the shown model is the server's."""
        return self.evaluate == "aggregate" or not self.has_models_under_way

    @property
    @override
    def edge_models(self) -> tuple[int, int]:
        return self._edge_models

    @override
    def unsuitable_rounds(self, rounds: int, arrivals: int) -> str | None:
        """Return a warning of a fit that would end between two aggregations."""
        over = rounds % self.inner_rounds
        if over == 0:
            return None
        whole = rounds - over + self.inner_rounds
        return (
            f"`max_epochs={rounds}` is not a multiple of `inner_rounds={self.inner_rounds}`: the fit ends {over} "
            f"rounds after the server's last aggregation. An epoch is one inner round. Give, for example, "
            f"max_epochs={whole}."
        )

    @override
    def may_show_aggregate(self, rounds: int, *, may_skip_rounds: bool) -> bool:
        if self.evaluate == "aggregate" or may_skip_rounds:
            return rounds >= self.inner_rounds
        return rounds % self.inner_rounds == 0

    @override
    def model_of(self, client: int, model: Tensor) -> Tensor:
        """Return the model of the client's group, at which it is scored before a draw."""
        return self.models.get(self.group_of[client], model)

    @override
    def sent(self, task: Task, server: Server) -> Tensor:
        """Return the model of the client's group: the server's, where it was not trained since the aggregation."""
        return self.model_of(task.client, server.model)

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let clients train, average each group's models, and let the server merge these when it is time."""
        trained = sorted({self.group_of[task.client] for task in tasks})
        # A group that begins has its model from the server.
        sent = sum(1 for group in trained if group not in self.models)
        means = {group: RunningMean() for group in trained}
        for result in (yield tasks):
            means[self.group_of[result.client]].add(result.vector, result.num_samples)
            del result

        # Buffers that no client changes are the server's.
        server.join_changing()
        models = dict(self.models)
        for group, running in means.items():
            mean, _ = running.pop(self.federation, server.model)
            if mean is not None:
                models[group] = server.keep_constant(mean.to(server.model.dtype))
        self.models = models
        self.position += 1

        taken = 0
        if self.position >= self.inner_rounds:
            taken = len(self.models)
            for group in sorted(self.models):
                server.take(self._result_of(group, server), everywhere=True)
            server.move()
            self.models = {}
            self.position = 0
        self._edge_models = (sent, taken)
        return server.model if self.shows_aggregate else self._mean(server)

    def _size_of(self, group: int) -> int:
        """Return the number of samples of all clients of a group in the round."""
        return int(self.federation.sizes[self._members[group]].sum())

    def _result_of(self, group: int, server: Server) -> ClientResult:
        """Return a group's model as the aggregation gets it."""
        task = Task(group, -1, self._size_of(group), round=self.round)
        length = self.federation.num_parameters
        return ClientResult(task, server.model, self.models[group], num_steps=0, num_parameters=length)

    def _mean(self, server: Server) -> Tensor:
        """Return the mean of the groups' models, weighted by their samples."""
        running = RunningMean()
        for group in sorted(self.models):
            running.add(self.models[group], self._size_of(group))
        mean, _ = running.pop()
        return server.model if mean is None else mean.to(server.model.dtype)

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's models.

        Raises:
            ValueError: If they are of other groups.
        """
        if state["models"] and state["group_of"] != self.group_of:
            raise ValueError(
                f"`groups` must be the checkpoint's until the server has merged the groups' models, got "
                f"{self.groups!r}. Give the same groups, or resume from an aggregation."
            )
        super().load_state_dict({**state, "group_of": self.group_of})
