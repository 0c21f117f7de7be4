"""The words that the parts of an algorithm share: the federation, a client's task and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """One client's local training in a round.

    Attributes:
        slot: Position in the round, 0 to m-1; with redistribution, the circulating model that is trained.
        client: The client, 0 to K-1.
        num_samples: Size n_k of the client's data set.
        work: Local epochs to do (local steps, if the algorithm counts steps); ``None`` means all of them. A straggler
            does fewer.
        round: The round in which the client receives its model, from 0. Its learning rates are that round's.
        repetition: How often the client received a model before in that round.
    """

    slot: int
    client: int
    num_samples: int
    work: int | None = None
    round: int = 0
    repetition: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """What the task's random numbers depend on, beside the run's seed."""
        return (self.round, self.client, self.repetition) if self.repetition else (self.round, self.client)


@dataclass(frozen=True)
class ClientResult:
    """What a client hands back.

    Attributes:
        task: The task that was done.
        start: The model that the client received, shape ``(size,)``; not to be written to.
        vector: The model after local training, shape ``(size,)``.
        num_steps: Optimizer steps that were made.
        summed_lr: Sum of the learning rates of these steps, for each parameter tensor; empty unless the local
            objective asks for it.
        score: The client's importance, if the sampler asks for one.
    """

    task: Task
    start: Tensor
    vector: Tensor
    num_steps: int
    summed_lr: Sequence[float] = ()
    score: float | None = None


class LocalClient(Protocol):
    """The client that is at work, as local objectives and samplers see it.

    Attributes:
        task: Its task.
        start: The model that it received, shape ``(size,)``; not to be written to.
    """

    task: Task
    start: Tensor

    def gradients(self, batch_size: int | str | None = "data") -> Iterator[tuple[dict[str, Tensor], int]]:
        """Yield the gradient of each batch's loss at the module's present weights, without training.

        The client's samples come once, in their stored order; the module is in eval mode meanwhile, and nothing that
        ``training_step`` logs is kept.

        Args:
            batch_size: Samples of a batch; ``None`` for all at once, ``"data"`` for the data module's batch size.

        Yields:
            The gradients by parameter name (overwritten by the next batch), and the number of samples.
        """
        ...


@dataclass(frozen=True)
class Federation:
    """What the parts of an algorithm may know about the run.

    Attributes:
        sizes: Samples n_k of each training client, shape ``(K,)``.
        model: The module's state when the fit begins, shape ``(size,)``: parameters first, then buffers.
        lengths: Number of values of each parameter tensor, in the model's order.
        seed: The run's seed.
        rank: This process.
        num_ranks: Number of processes.
        state_dir: Folder for clients' states; ``None`` keeps them in memory.
        sum_over_ranks: Returns the sum of a tensor over all processes.
        gather: Returns the object of every process, in the order of ranks.
        local_work: Returns the ``"samples"`` that each client's local training goes through, or its ``"steps"``
            (batches), shape ``(K,)``.
    """

    sizes: np.ndarray
    model: Tensor
    lengths: Sequence[int]
    seed: int = 0
    rank: int = 0
    num_ranks: int = 1
    state_dir: Path | None = None
    sum_over_ranks: Callable[[Tensor], Tensor] = field(default=lambda tensor: tensor)
    gather: Callable[[Any], list[Any]] = field(default=lambda mine: [mine])
    local_work: Callable[[str], Sequence[int]] = field(default=lambda kind: [])

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        return len(self.sizes)

    @property
    def num_parameters(self) -> int:
        """Length of the model's first part, the trained parameters; buffers follow."""
        return sum(self.lengths)

    def join(self, mine: dict[int, Any]) -> dict[int, Any]:
        """Return the entries of all processes' mappings, in the order of their keys."""
        if self.num_ranks == 1:
            return mine
        on_cpu = {key: value.cpu() if isinstance(value, Tensor) else value for key, value in mine.items()}
        return dict(sorted(entry for share in self.gather(on_cpu) for entry in share.items()))


class Part:
    """One part of an algorithm: what the algorithm tells it in the course of a fit. The defaults do nothing.

    A part changes its state only in ``close``, so that a round that is broken off leaves no trace.
    """

    def begin(self, federation: Federation) -> None:
        """Start afresh with a federation."""

    def begin_round(self, round_index: int) -> None:
        """Prepare a round, counted from 0."""

    def discard(self) -> None:
        """Forget what clients handed in since the last round's end."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round's end that a resumed run needs: tensors, numbers, lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint, after ``begin``."""
