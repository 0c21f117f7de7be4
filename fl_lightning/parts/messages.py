"""Tasks, results and payloads, which travel; and counts of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

Outcome = Literal["used", "rejected", "invalid", "lost"]


@dataclass(frozen=True)
class Task:
    """One client's local training in a round. In FedAvg's rounds, all attributes after ``round`` have their defaults.

    Attributes:
        slot: Position in the round, 0 to m-1; with redistribution, the circulating model that is trained.
        client: The client, 0 to K-1.
        num_samples: Size n_k of the client's data set.
        work: Local epochs to do (local steps, if the algorithm counts steps); ``None`` means all of them. A straggler
            does fewer; with 0 the client only looks at the model.
        round: The round in which the client receives its model, from 0. Its learning rates are that round's.
        repetition: How often the client received a model before in that round.
        phase: 0 for the training of the server's model; schedules of personal models number their further trainings.
        message: Which of the round's messages to the client it works on. Further trainings share the first one, 0,
            unless the server sends another model for them.
        is_known: Whether the client has that message already: it was scored with the model before the draw.
    """

    slot: int
    client: int
    num_samples: int
    work: int | None = None
    round: int = 0
    repetition: int = 0
    phase: int = 0
    message: int = 0
    is_known: bool = False

    @property
    def seeds(self) -> tuple[int, ...]:
        """What the task's random numbers depend on, besides the run's seed."""
        # Numbers that are 0 are left out at the end, so that most tasks have two seeds.
        if self.phase:
            return self.round, self.client, self.repetition, self.phase
        if self.repetition:
            return self.round, self.client, self.repetition
        return self.round, self.client

    @property
    def sending(self) -> Task:
        """The task whose random numbers the message has: the same one for all trainings that share it."""
        return self if self.phase == self.message else replace(self, phase=self.message)


def further_tasks(tasks: Iterable[Task], work: int | None = None, phase: int = 1) -> list[Task]:
    """Return the tasks of a further training of the same clients, with other work if it is given."""
    if work is None:
        return [replace(task, phase=phase) for task in tasks]
    return [replace(task, phase=phase, work=work) for task in tasks]


@dataclass(frozen=True)
class Payload:
    """The size of one message: how many numbers it holds, and with how many bits.

    Attributes:
        values: Numbers that are sent.
        bits_per_value: Bits of each number.
        extra_bits: Further bits: the positions of a sparse message, the scale of a quantised one.
    """

    values: int = 0
    bits_per_value: float = 32
    extra_bits: int = 0

    @property
    def bits(self) -> int:
        """Bits of the whole message, rounded up."""
        return math.ceil(self.values * self.bits_per_value) + self.extra_bits

    def sparse(self, values: int, of: int) -> Payload:
        """Return the payload of ``values`` numbers out of ``of``, each sent with its position."""
        # As many bits as the last position has, which is `of - 1`; a number of numpy may have no such method.
        position = (int(of) - 1).bit_length()
        return replace(self, values=values, extra_bits=self.extra_bits + values * position)

    def quantized(self, bits_per_value: float, extra_bits: int = 0) -> Payload:
        """Return the payload with fewer bits a number and, for example, the bits of a scale."""
        return replace(self, bits_per_value=bits_per_value, extra_bits=self.extra_bits + extra_bits)


@dataclass(frozen=True)
class OptimizerState:
    """What a client's optimizers, and its schedules by steps, hold after its training.

    Attributes:
        tensors: Moments and the like, one after the other, floating-point of shape ``(num_values,)``.
        numbers: Which states there are, counters of steps and, with a schedule by steps, the options of the optimizers
            and where the schedule is, float64 of shape ``(num_numbers,)``.
    """

    tensors: Tensor
    numbers: Tensor


@dataclass(frozen=True)
class ClientResult:
    """The result that a client hands back. Do not write to its tensors.

    Attributes:
        task: The task that was done.
        received: The model that the client received, shape ``(size,)``: parameters first, then buffers. Its update is
            the change since then, wherever its training began.
        vector: The model after local training, shape ``(size,)``.
        num_steps: Optimizer steps that were made.
        summed_lr: Sum of the learning rates of these steps, for each parameter tensor; empty unless a part needs it.
        score: The client's importance, if the sampler asks for one.
        num_parameters: Length of the model's first part, the trained parameters; the whole model if ``None``.
        payload: What the client sends of its parameters; an :class:`Exchange` that sends less replaces it.
        staleness: How far the server's counter went on since the client received its model; 0 in synchronous rounds.
        counter: The server's counter when the result arrived.
        loss: F_k at the received model, if the local objective measures it.
        numbers: Numbers that the local objective sends with it.
        optimizer: What the client's optimizers hold, where the client keeps that. It does not leave the client.
    """

    task: Task
    received: Tensor
    vector: Tensor
    num_steps: int
    summed_lr: Sequence[float] = ()
    score: float | None = None
    num_parameters: int | None = None
    payload: Payload = field(default_factory=Payload)
    staleness: int = 0
    counter: int = 0
    loss: float | None = None
    numbers: int = 0
    optimizer: OptimizerState | None = None

    @property
    def client(self) -> int:
        """The client, 0 to K-1."""
        return self.task.client

    @property
    def num_samples(self) -> int:
        """Samples of the client; of a circulating model, those of all clients that trained it in the cycle."""
        return self.task.num_samples

    def weight(self, weighting: str) -> float:
        """Return the weight in a mean: the number of samples if ``weighting`` is ``"samples"``, else 1."""
        return float(self.task.num_samples) if weighting == "samples" else 1.0

    @property
    def parameters(self) -> Tensor:
        """The trained parameters, shape ``(num_parameters,)``."""
        return self.vector[: self._length]

    @property
    def buffers(self) -> Tensor:
        """The module's buffers after training, shape ``(size - num_parameters,)``."""
        return self.vector[self._length :]

    @property
    def received_parameters(self) -> Tensor:
        """The parameters of the model that the client received, shape ``(num_parameters,)``."""
        return self.received[: self._length]

    @property
    def received_buffers(self) -> Tensor:
        """The buffers of the model that the client received, shape ``(size - num_parameters,)``."""
        return self.received[self._length :]

    @property
    def delta(self) -> Tensor:
        """The client update: trained minus received parameters, shape ``(num_parameters,)``."""
        return self.parameters - self.received_parameters

    @property
    def changes_buffers(self) -> bool:
        """Whether training has changed the module's buffers."""
        return not same_values(self.buffers, self.received_buffers)

    @property
    def is_finite(self) -> bool:
        """Whether the parameters, the buffers that training changed and the loss are finite."""
        if self.loss is not None and not math.isfinite(self.loss):
            return False
        # The sum is nearly always finite, and cheaper than a test of each value.
        if math.isfinite(self.vector.sum()):
            return True
        if not self.parameters.isfinite().all():
            return False
        before = self.received_buffers
        is_constant = (self.buffers == before) | (self.buffers.isnan() & before.isnan())
        return bool((self.buffers.isfinite() | is_constant).all())

    def with_delta(self, delta: Tensor, payload: Payload | None = None) -> ClientResult:
        """Return the result with another update, and with the parameters that follow from it.

        Args:
            delta: Shape ``(num_parameters,)``.
            payload: What is sent of it; as before if ``None``.
        """
        moved = (self.received_parameters + delta).to(self.vector.dtype)
        vector = torch.cat([moved, self.buffers])
        if payload is None:
            payload = self.payload
        return replace(self, vector=vector, payload=payload)

    def with_buffers(self, buffers: Tensor) -> ClientResult:
        """Return the result with other buffers, shape ``(size - num_parameters,)``."""
        return replace(self, vector=torch.cat([self.parameters, buffers.to(self.vector.dtype)]))

    def with_vector(self, vector: Tensor) -> ClientResult:
        """Return the result with another trained model, shape ``(size,)``."""
        return replace(self, vector=vector)

    def to(self, device: torch.device) -> ClientResult:
        """Return the result with its tensors on a device."""
        return replace(self, received=self.received.to(device), vector=self.vector.to(device))

    @property
    def _length(self) -> int:
        return len(self.vector) if self.num_parameters is None else self.num_parameters


@dataclass(frozen=True)
class Upload:
    """The message of a client that is another machine: a result that has passed through the exchanges there.

    Attributes:
        task: The task that was done.
        result: The result as the server sees it; ``None`` for NaN or infinite values, which the client did not send.
        changed: Names of the buffers that the client's training changed.
    """

    task: Task
    result: ClientResult | None
    changed: frozenset[str] = frozenset()


@dataclass
class Traffic:
    """Everything that was sent since the fit began.

    Attributes:
        models_down: Models (vectors of the model's length) from the server to clients.
        models_up: Models from clients to the server.
        values_down: Numbers from the server to clients.
        values_up: Numbers from clients to the server.
        bits_down: Bits from the server to clients.
        bits_up: Bits from clients to the server.
        edge_models_down: Models from the server to edges, if groups of clients have edges of their own, which then send
            and get what is counted above.
        edge_models_up: Models from edges to the server.
        edge_bits_down: Bits from the server to edges.
        edge_bits_up: Bits from edges to the server.
    """

    models_down: int = 0
    models_up: int = 0
    values_down: int = 0
    values_up: int = 0
    bits_down: int = 0
    bits_up: int = 0
    edge_models_down: int = 0
    edge_models_up: int = 0
    edge_bits_down: int = 0
    edge_bits_up: int = 0

    def send_down(self, payload: Payload, times: int = 1) -> None:
        """Count a message that the server sends to ``times`` clients."""
        self.values_down += payload.values * times
        self.bits_down += payload.bits * times

    def send_up(self, payload: Payload, times: int = 1) -> None:
        """Count a message that ``times`` clients send to the server."""
        self.values_up += payload.values * times
        self.bits_up += payload.bits * times

    def copy(self) -> Traffic:
        """Return a copy, which further messages leave as it is."""
        return replace(self)


@dataclass(frozen=True)
class ArrivalRecord:
    """The outcome of one client's work.

    Attributes:
        client: The client.
        sent: Virtual time at which it received its model.
        arrived: Virtual time at which its result arrived, or it was known to be lost.
        staleness: d, by the server's counter; -1 if it was lost.
        outcome: ``"used"``; ``"rejected"``: too stale, or a second one in the buffer; ``"invalid"``: NaN or infinite;
            ``"lost"``: dropped out.
        moved: Whether the server moved at once.
        slot: The slot of its task, which numbers the run's.
    """

    client: int
    sent: float
    arrived: float
    staleness: int
    outcome: Outcome
    moved: bool = False
    slot: int = -1


@dataclass
class RoundReport:
    """What happened to a round's clients.

    Attributes:
        reported: Clients whose work the server used.
        dropped: Clients that received a model and did not report.
        left_out: Clients that handed back NaN or infinite values.
        num_sent: How many clients of the round were sent a model to train: also those that dropped out, and those that
            had it already, because they were scored with it.
        receivers: The task of each message with a model: of those clients that did not have it, and of scored ones.
        uploads: The messages that reached it, each with its task.
        scored: Clients that received the server's model to be scored before the draw.
        scores: The scores of clients that were scored when they trained.
        numbers: Numbers that the objective sent besides.
        arrivals: What became of each result of an asynchronous round, in the order of arrival.
    """

    reported: list[int] = field(default_factory=list)
    dropped: int = 0
    left_out: list[int] = field(default_factory=list)
    num_sent: int = 0
    receivers: list[Task] = field(default_factory=list)
    uploads: list[tuple[Task, Payload]] = field(default_factory=list)
    scored: int = 0
    scores: dict[int, float] = field(default_factory=dict)
    numbers: int = 0
    arrivals: list[ArrivalRecord] = field(default_factory=list)

    def note(self, task: Task, result: ClientResult | None, left_out: Callable[[Task], Payload]) -> None:
        """Note that a client has answered.

        Args:
            task: The client's task.
            result: What the server uses; ``None`` if it was invalid.
            left_out: Returns the message of a client whose result is left out.
        """
        if result is None:
            self.left_out.append(task.client)
            self.uploads.append((task, left_out(task)))
            return
        self.reported.append(task.client)
        self.uploads.append((task, result.payload))
        self.numbers += result.numbers
        if result.score is not None:
            self.scores[task.client] = result.score

    def joined(self, reports: Iterable[RoundReport]) -> RoundReport:
        """Return the report with what all processes' reports say of their clients; the draw is that of all."""
        joined = replace(self, reported=[], left_out=[], uploads=[], scores={}, numbers=0)
        for report in reports:
            joined.reported += report.reported
            joined.left_out += report.left_out
            joined.uploads += report.uploads
            joined.scores |= report.scores
            joined.numbers += report.numbers
        joined.reported.sort()
        joined.left_out.sort()
        # Sums of scores are then the same on any number of processes.
        joined.scores = dict(sorted(joined.scores.items()))
        return joined


def same_values(first: Tensor, second: Tensor) -> bool:
    """Return whether two vectors hold the same values, NaN included."""
    if first.shape != second.shape:
        return False
    # This is nearly always the answer, and cheaper than what follows.
    if torch.equal(first, second):
        return True
    is_same = (first == second) | (first.isnan() & second.isnan())
    return bool(is_same.all())
