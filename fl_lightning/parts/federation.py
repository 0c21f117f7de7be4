"""The words that the parts of an algorithm share: the federation, a client's task and its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts.alone import gather_alone, no_local_work, sum_alone
from fl_lightning.parts.known import Known
from fl_lightning.parts.traffic import Payload
from fl_lightning.representation import short


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
    """The result that a client hands back. Do not write to its tensors.

    Attributes:
        task: The task that was done.
        start: The model that the client received, shape ``(size,)``: parameters first, then buffers.
        vector: The model after local training, shape ``(size,)``.
        num_steps: Optimizer steps that were made.
        summed_lr: Sum of the learning rates of these steps, for each parameter tensor; empty unless the local
            objective asks for it.
        score: The client's importance, if the sampler asks for one.
        num_parameters: Length of the model's first part, the trained parameters; the whole model if ``None``.
        payload: What the client sends of its parameters; an :class:`Exchange` that sends less replaces it.
        staleness: How far the server's counter went on since the client received its model; 0 in synchronous rounds.
        counter: The server's counter when the result arrived.
        loss: F_k at the received model, if the local objective measures it.
    """

    task: Task
    start: Tensor
    vector: Tensor
    num_steps: int
    summed_lr: Sequence[float] = ()
    score: float | None = None
    num_parameters: int | None = None
    payload: Payload = field(default_factory=Payload)
    staleness: int = 0
    counter: int = 0
    loss: float | None = None
    _read: Callable[[ClientResult], Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def num_samples(self) -> int:
        """Samples of the client; of a circulating model, those of all clients that trained it in the cycle."""
        return self.task.num_samples

    @property
    def parameters(self) -> Tensor:
        """The trained parameters, shape ``(num_parameters,)``."""
        return self.vector[: self._length]

    @property
    def buffers(self) -> Tensor:
        """The module's buffers after training, shape ``(size - num_parameters,)``."""
        return self.vector[self._length :]

    @property
    def changes_buffers(self) -> bool:
        """Whether training has changed the module's buffers."""
        return not same_values(self.buffers, self.start[self._length :])

    @property
    def delta(self) -> Tensor:
        """The client update: trained minus received parameters, shape ``(num_parameters,)``."""
        return self.computed_delta() if self._read is None else self._read(self)

    def computed_delta(self) -> Tensor:
        """Return :attr:`delta` as a new tensor."""
        return self.parameters - self.start[: self._length]

    def read_delta_by(self, read: Callable[[ClientResult], Tensor] | None) -> None:
        """Let :attr:`delta` be what a function returns of the result; ``None``: a new tensor each time."""
        object.__setattr__(self, "_read", read)

    def with_delta(self, delta: Tensor, payload: Payload | None = None) -> ClientResult:
        """Return the result with another update, and with the parameters that follow from it.

        Args:
            delta: Shape ``(num_parameters,)``.
            payload: What is sent of it; as before if ``None``.

        Raises:
            ValueError: If the update has another shape.
        """
        self._check_length("with_delta", delta, self._length)
        moved = (self.start[: self._length] + delta).to(self.vector.dtype)
        vector = torch.cat([moved, self.buffers])
        return replace(self, vector=vector, payload=self.payload if payload is None else payload)

    def with_buffers(self, buffers: Tensor) -> ClientResult:
        """Return the result with other buffers, shape ``(size - num_parameters,)``; others are a ``ValueError``."""
        self._check_length("with_buffers", buffers, len(self.vector) - self._length)
        return replace(self, vector=torch.cat([self.parameters, buffers.to(self.vector.dtype)]))

    def with_vector(self, vector: Tensor) -> ClientResult:
        """Return the result with another trained model, shape ``(size,)``; others are a ``ValueError``."""
        self._check_length("with_vector", vector, len(self.vector))
        return replace(self, vector=vector)

    def to(self, device: torch.device) -> ClientResult:
        """Return the result with its tensors on a device."""
        return replace(self, start=self.start.to(device), vector=self.vector.to(device))

    def _check_length(self, method: str, given: Tensor, length: int) -> None:
        if getattr(given, "shape", None) != (length,):
            raise ValueError(
                f"`result.{method}` needs a tensor of shape ({length},), got {short(given)}. The result has "
                f"{self._length} parameters and {len(self.vector) - self._length} values of buffers."
            )

    @property
    def _length(self) -> int:
        return len(self.vector) if self.num_parameters is None else self.num_parameters


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

    def loss(self) -> float:
        """Return the mean loss of the client's samples at the module's present weights, in eval mode."""
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
        sum_over_ranks: Returns the sum of a tensor over all processes, as a new tensor; call it on all of them. The
            tensor that is given stays as it is. Anything but a tensor is a ``TypeError``.
        gather: Returns the object of every process, in the order of ranks; call it on all of them. Tensors of a GPU
            arrive on the receiver's own GPU.
        local_work: Returns the ``"samples"`` that each client's local training goes through, or its ``"steps"``
            (batches), shape ``(K,)``.
        names: Names of all tensors of the model, in its order.
        shapes: Their shapes.
        bits_per_value: Bits of a number of each of the model's tensors, as the module holds it; one for all.
        replicates_states: Whether every process keeps the vectors of all clients.
        max_rounds: After how many rounds in all the fit ends; ``None`` if that is not known.
        client_states: Every :class:`ClientStates` of the fit.
    """

    sizes: np.ndarray
    model: Tensor
    lengths: Sequence[int]
    seed: int = 0
    rank: int = 0
    num_ranks: int = 1
    state_dir: Path | None = None
    sum_over_ranks: Callable[[Tensor], Tensor] = sum_alone
    gather: Callable[[Any], list[Any]] = gather_alone
    local_work: Callable[[str], Sequence[int]] = no_local_work
    names: Sequence[str] = ()
    shapes: Sequence[torch.Size] = ()
    bits_per_value: int | Sequence[int] = 32
    replicates_states: bool = False
    max_rounds: int | None = None
    client_states: Known = field(default_factory=Known, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of a pickle: all but the links to other processes and to the trainer."""
        return {
            **self.__dict__,
            "sum_over_ranks": sum_alone,
            "gather": gather_alone,
            "local_work": no_local_work,
        }

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        return len(self.sizes)

    @property
    def num_parameters(self) -> int:
        """Length of the model's first part, the trained parameters; buffers follow."""
        return sum(self.lengths)

    @property
    def tensor_lengths(self) -> list[int]:
        """Number of values of each of the model's tensors, parameters first."""
        return [shape.numel() for shape in self.shapes]

    def payload(self, places: Iterable[int]) -> Payload:
        """Return the message that holds the model's tensors at these places, each number as the module holds it."""
        lengths, bits = self.tensor_lengths or self.lengths, self.bits_per_value
        sent = [(lengths[place], bits if isinstance(bits, int) else bits[place]) for place in places]
        values, total = sum(length for length, _ in sent), sum(length * each for length, each in sent)
        number = max(1, values)  # a mean that is no whole number gives the total when it is rounded up
        return Payload(values, math.nextafter(total / number, 0) if total % number else total // number)

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a model, or of only its parameters, by the names of the module's tensors."""
        views, begin = dict[str, Tensor](), 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            if begin >= len(vector):
                break
            views[name] = vector[begin : begin + shape.numel()].view(shape)
            begin += shape.numel()
        return views

    def matching(self, patterns: Sequence[str], argument: str = "pattern") -> list[str]:
        """Return the names of the model's tensors that match one of the patterns.

        Args:
            patterns: Names of tensors or of submodules (``"head"``), or shell patterns of names (``"*.bn*"``).
            argument: What the user calls them, for the error.

        Raises:
            ValueError: If a pattern matches nothing.
        """
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in self.names):
                shown = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
                raise ValueError(
                    f"`{argument}` {pattern!r} matches no trained parameter and no buffer of the module. It has "
                    f"{shown}. Give a name, a submodule such as {self.names[-1].split('.')[0]!r}, or a pattern such as "
                    '"*.bias".'
                )
        return [name for name in self.names if any(_matches(name, pattern) for pattern in patterns)]

    def mask(self, names: Sequence[str]) -> Tensor:
        """Return which values of the model belong to the named tensors, booleans of shape ``(size,)``."""
        mask = torch.zeros(len(self.model), dtype=torch.bool, device=self.model.device)
        views = self.tensors(mask)
        for name in names:
            views[name].fill_(True)
        return mask

    def join(self, mine: dict[int, Any]) -> dict[int, Any]:
        """Return the entries of all processes' mappings, in the order of their keys."""
        if self.num_ranks == 1:
            return mine
        on_cpu = {key: value.cpu() if isinstance(value, Tensor) else value for key, value in mine.items()}
        return dict(sorted((entry for share in self.gather(on_cpu) for entry in share.items()), key=itemgetter(0)))


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def same_values(first: Tensor, second: Tensor) -> bool:
    """Return whether two vectors hold the same values, NaN among them."""
    if first.shape != second.shape:
        return False
    return torch.equal(first, second) or bool(((first == second) | (first.isnan() & second.isnan())).all())


def accumulator(like: Tensor) -> torch.dtype:
    """Return the type for running sums beside ``like``: float64, but Apple's GPUs have none."""
    return torch.float32 if like.device.type == "mps" else torch.float64
