"""The words that the parts of an algorithm share: a client's task and its result."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Task:
    """One client's local training in a round.

    Attributes:
        slot: Position in the round, 0 to m-1; with redistribution, the circulating model that is trained.
        client: The client, 0 to K-1.
        num_samples: Size n_k of the client's data set.
    """

    slot: int
    client: int
    num_samples: int


@dataclass(frozen=True)
class ClientResult:
    """What a client hands back.

    Attributes:
        task: The task that was done.
        vector: The model after local training, shape ``(size,)``.
        num_steps: Optimizer steps that were made.
    """

    task: Task
    vector: Tensor
    num_steps: int
