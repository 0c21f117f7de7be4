"""Messages of fewer bits: sparse, rounded or of a low rank, up and down, with error feedback."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Payload, Task
from fl_lightning.seeding import Stream
from fl_lightning.settings import Count, Share, check_fields
from fl_lightning.vectors import checked_vector, share_of

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

Link = Literal["up", "down"]
Compressed = Literal["update", "model"]


@dataclass(eq=False, repr=False)
class Compressor(Exchange, ABC):
    """Sends an approximation that takes fewer bits: of a client's update, or of the model that it receives.

    Up: the client sends ``C(update)``. With error feedback it sends ``C(update + e)`` and keeps the remainder as its
    next e (Seide et al. 2014, Stich et al. 2018).

    Down: the server remembers which model each client knows, at first the run's first model, and sends the compressed
    difference to it. A client starts from the model that it knows plus this difference. A remainder is part of the next
    difference, so this is error feedback too (Mishchenko et al. 2019, Richtarik et al. 2021).

    With ``of="model"`` the client compresses its trained model in place of its update, without error feedback, as some
    libraries do. Values that are left out then count as 0 in the mean, which pulls the server's model to 0.

    Buffers and personal parameters are not compressed. In a list of compressions, the second one sees only the values
    that the first one sends, and has no error feedback: what it owes would lie at other places.

    Attributes:
        link: ``"up"`` from the client to the server, or ``"down"``; for both, give two in a list.
        error_feedback: Whether the remainder is sent later; the class's default if ``None``.
        of: What is compressed on the way up: the client's ``"update"`` or its ``"model"``.
        kept: What each client owes (up), or the model that it knows (down).

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If ``link`` or ``of`` is unknown, or error feedback is to be off on the way down, or on with
            ``of="model"``; when an algorithm is made, if another exchange in the list makes the counted bits wrong.
    """

    _: KW_ONLY
    error_feedback: bool | None = None
    link: Link = "up"
    of: Compressed = "update"
    #: The default of ``error_feedback`` on the way up.
    feeds_back: ClassVar[bool] = False
    #: Whether it must be the only compression of its way, because it sends something else than values.
    alone: ClassVar[bool] = False

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        if self.link == "down" and self.error_feedback is False:
            raise ValueError('`error_feedback` is part of `link="down"`, got False. Leave the argument out.')
        if self.of == "model" and (self.link == "down" or self.error_feedback):
            raise ValueError(
                '`of="model"` is for the way up, without error feedback: what is left out of a model is not owed. '
                f"Got `link={self.link!r}`, `error_feedback={self.error_feedback}`."
            )
        if self.error_feedback is None:
            self.error_feedback = self.link == "down" or (self.feeds_back and self.of == "update")

    @property
    @override
    def remembers_messages(self) -> bool:  # type: ignore[override]
        """Whether it keeps what a client owes, or knows."""
        return bool(self.error_feedback)

    @abstractmethod
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return what the receiver makes of the message, shape ``(n,)``.

        Args:
            values: What is to be sent, shape ``(n,)``; not to be written to.
            generator: For what is drawn, on the CPU; the same on both sides.
        """

    @abstractmethod
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the message, given that of what is compressed."""

    @override
    def setup(self, federation: Federation) -> None:
        """Let all clients know the first model, and owe nothing."""
        self.kept: ClientVectors
        if self.link == "down":
            first, _ = federation.layout.split(federation.model)
            self.add_client_vectors("kept", first)
        elif self.error_feedback:
            self.add_client_vectors("kept", federation.zeros())

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield which other exchanges make the counted bits wrong."""
        members = algorithm.chain.members
        same_way = [member for member in members if isinstance(member, Compressor) and member.link == self.link]
        must_be_alone = self.link == "down" or any(member.alone or member.of == "model" for member in same_way)
        if len(same_way) > 1 and must_be_alone:
            yield f"`exchange` cannot have both {same_way[0]!r} and {same_way[1]!r} on the same way. Keep one of them."
        # A part of another exchange has no place in the list.
        if self.link == "down" or self not in members:
            return
        for later in members[members.index(self) + 1 :]:
            if later.fills_zeros:
                yield f"`exchange` cannot have {later!r} after {self!r}: it changes values that stay. Put it before."
            if later in same_way and later.error_feedback:
                yield f"{later!r} owes values that {self!r} before it does not send. Give it `error_feedback=False`."

    @override
    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that the client knows then, shape ``(size,)``."""
        if self.link == "up":
            return model
        layout = self.federation.layout
        parameters, buffers = layout.split(model)
        known = self.kept[task.client]
        if not task.is_known:
            message = self._compressed(self.sent(parameters - known), task)
            known = known + self.filled(message, torch.zeros_like(known))
        return layout.joined(self.filled(self.sent(known), parameters), buffers)

    @override
    def on_delivery(self, task: Task, received: Tensor) -> None:
        """Note the model that the client knows from now on."""
        if self.link == "down":
            parameters, _ = self.federation.layout.split(received)
            self.kept[task.client] = self.filled(self.sent(parameters), self.kept[task.client])

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the compressed update."""
        if self.link == "down":
            return result
        update = self.sent_update(result)
        if self.of == "model":
            start = self.sent(result.received_parameters)
            sent = self._compressed(start + update, result.task) - start
            return self.with_sent_update(result, sent, self.encoded(result.payload))
        if self.error_feedback:
            update = update + self.sent(self.kept[result.client])
        sent = self._compressed(update, result.task, result.payload.values)
        if self.error_feedback:
            self.kept[result.client] = self.filled(update - sent, self.federation.zeros())
        return self.with_sent_update(result, sent, self.encoded(result.payload))

    @override
    def payload_down(self, payload: Payload, task: Task | None = None) -> Payload:
        return self.encoded(payload) if self.link == "down" else payload

    @override
    def payload_up(self, payload: Payload) -> Payload:
        return self.encoded(payload) if self.link == "up" else payload

    def _compressed(self, values: Tensor, task: Task, number: int | None = None) -> Tensor:
        """Return what the receiver makes of values, shape ``(num_sent,)``.

        Args:
            values: What is to be sent, shape ``(num_sent,)``.
            task: The client's task.
            number: How many of them exchanges before this one send, and these alone are compressed: the others are 0.
                All if ``None``.
        """
        way = ("up", "down").index(self.link)
        generator = self.generator(task, self.place, way, stream=Stream.COMPRESSION)
        if number is None or number >= len(values):
            return checked_vector(self, "compress", self.compress(values, generator), values)
        places = values.nonzero().squeeze(1)
        given = values[places]
        sent = checked_vector(self, "compress", self.compress(given, generator), given)
        return torch.zeros_like(values).index_copy(0, places, sent)


@dataclass(eq=False, repr=False)
class _ShareCompressor(Compressor, ABC):
    """Sends a share of the values."""

    fraction: Share

    def number_of(self, values: int) -> int:
        """Return how many of so many values are sent: rounded down, at least 1."""
        number = int(share_of(self.fraction, values))
        return min(values, max(1, number))


@dataclass(eq=False, repr=False)
class TopK(_ShareCompressor):
    """Sends the values of the largest magnitude, each with its position (Aji and Heafield 2017, Stich et al. 2018).

    A position among n values takes ``ceil(log2 n)`` bits.

    Args:
        fraction: Share of the values that is sent, in (0, 1]; rounded down, at least one value.
        error_feedback: Whether the client adds the remainder to its next update.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If another argument is out of its range.
    """

    runs_at = "client"
    feeds_back: ClassVar[bool] = True

    @override
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the largest values, and 0 elsewhere."""
        largest = values.abs().topk(self.number_of(len(values))).indices
        return torch.zeros_like(values).index_copy(0, largest, values[largest])

    @override
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the values and their positions."""
        return payload.sparse(self.number_of(payload.values), of=payload.values)


@dataclass(eq=False, repr=False)
class RandomK(_ShareCompressor):
    """Sends the values at places drawn uniformly, without replacement (Konecny et al. 2016, random mask).

    Both sides draw the places from the run's seed, the round and the client, so that no position is sent. Without error
    feedback the k of n values are multiplied by ``n / k``: the mean over the places is the update itself, and the mean
    squared error is ``(n / k - 1) |update|^2``. With error feedback, or on the way down, they are sent as they are.

    Args:
        fraction: Share of the values that is sent, in (0, 1]; rounded down, at least one value.
        error_feedback: Whether the client adds the remainder to its next update; on the way down it always does.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is no boolean.
        ValueError: If another argument is out of its range.
    """

    @override
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the values at the drawn places, and 0 elsewhere."""
        number = self.number_of(len(values))
        order = torch.randperm(len(values), generator=generator)
        places = order[:number].to(values.device)
        # Without error feedback what is not sent is lost, and the values that are sent stand for it.
        scale = 1.0 if self.error_feedback else len(values) / max(1, number)
        return torch.zeros_like(values).index_copy(0, places, scale * values[places])

    @override
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the values; both sides know their places."""
        return replace(payload, values=self.number_of(payload.values))


@dataclass(eq=False, repr=False)
class SignSGD(Compressor):
    """Sends the signs of the values and their mean magnitude: ``sign(v) |v|_1 / n`` (Karimireddy et al. 2019).

    One bit a value, and one number; 0 counts as positive. Without error feedback this is biased and need not converge
    (Bernstein et al. 2018 vote by majority instead).

    Args:
        error_feedback: Whether the client adds the remainder to its next update.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If another argument is out of its range.
    """

    feeds_back: ClassVar[bool] = True

    @override
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the scaled signs."""
        scale = values.abs().double().mean().to(values.dtype)
        return torch.where(values >= 0, scale, -scale)

    @override
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the signs and the scale."""
        return payload.quantized(1, math.ceil(payload.bits_per_value))


@dataclass(eq=False, repr=False)
class QSGD(Compressor):
    """Rounds each value at random to one of ``2^bits - 1`` levels (Alistarh et al. 2017).

    Within a bucket v of d values, ``v_i`` becomes ``|v| sign(v_i) l / s`` with ``s = 2^(bits-1) - 1`` and l one of the
    two whole numbers next to ``s |v_i| / |v|``, such that the mean is ``v_i``. The mean squared error is at most
    ``min(d / s^2, sqrt(d) / s) |v|^2``. A value takes a sign and ``bits - 1`` bits of l; a bucket also its norm. These
    are fixed lengths: the paper's Elias code can be shorter where most levels are 0. With ``norm="max"`` the largest
    magnitude of a bucket takes the place of ``|v|``, as in the paper's experiments: values have more levels then.

    With error feedback, or on the way down, the rounded values are divided by ``1 + min(d / s^2, sqrt(d) / s)``, with d
    the bucket size or the number of values, if that is less. Without this division the error may be longer than the
    update, and what is owed would grow without end; with it the mean squared error is at most
    ``(1 - 1 / (1 + min(d / s^2, sqrt(d) / s))) |v|^2`` (Richtarik et al. 2021, scaled unbiased compressors).

    Args:
        bits: Bits of a value, 2 to 16; with 2 a value is -1, 0 or 1 times the norm.
        bucket_size: Values that share a norm: the smaller, the smaller the error, and the more norms are sent.
        norm: ``"l2"`` for the Euclidean norm, ``"max"`` for the largest magnitude.
        error_feedback: Whether the client adds the rounding error to its next update; on the way down it always does.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is no boolean.
        ValueError: If another argument is out of its range.
    """

    bits: Annotated[int, "[2, 16]"]
    bucket_size: Count = 512
    norm: Literal["l2", "max"] = "l2"

    @override
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the rounded values."""
        levels = 2 ** (self.bits - 1) - 1
        # The last bucket is filled up with zeros.
        missing = -len(values) % self.bucket_size
        buckets = F.pad(values, (0, missing)).view(-1, self.bucket_size).double()
        order = 2 if self.norm == "l2" else math.inf
        norms = torch.linalg.vector_norm(buckets, order, dim=1, keepdim=True)
        # Norms are sent in the model's type, so that both sides must reckon with them rounded to it.
        norms = norms.to(values.dtype).double()
        shares = levels * buckets.abs() / norms.where(norms > 0, 1.0)
        drawn = torch.rand(shares.shape, generator=generator, dtype=torch.float64).to(values.device)
        rounded = (shares + drawn).floor().clamp(max=levels)
        scale = 1.0
        if self.error_feedback:
            size = min(self.bucket_size, len(values))
            scale = 1 + min(size / levels**2, math.sqrt(size) / levels)
        quantized: Tensor = norms * buckets.sign() * rounded / (levels * scale)
        return quantized.flatten()[: len(values)].to(values.dtype)

    @override
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of signs, levels and norms."""
        norms = math.ceil(payload.values / self.bucket_size)
        return payload.quantized(self.bits, norms * math.ceil(payload.bits_per_value))


@dataclass(eq=False, repr=False)
class LowRank(Compressor):
    """Sends each weight matrix M as P Q^T of a low rank, after steps of the power iteration (Vogels et al. 2019).

    A tensor of more than two dimensions is a matrix of its first one by all others. Tensors of one dimension, and
    matrices that would not become smaller, are sent as they are. P is orthogonal, Q = M^T P. The iteration starts each
    time from new random numbers, which both sides draw. PowerSGD starts from the last Q, which clients that rarely take
    part do not have.

    Args:
        rank: Columns of P and Q.
        iterations: Steps of the power iteration; each brings the product nearer to the best one of that rank.
        error_feedback: Whether the client adds the remainder to its next update.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If another argument is out of its range; when an algorithm is made, with another compression of
            the same way.
    """

    rank: Count
    iterations: Count = 2
    feeds_back: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of each tensor that is sent; one column for a vector."""
        federation = self.federation
        layout = federation.layout
        found: list[tuple[int, int]] = []
        # Parameters come first among the layout's shapes, and buffers are not compressed.
        for name, shape in zip(layout.trained, layout.shapes, strict=False):
            if federation.traveling is not None and name not in federation.traveling:
                continue
            if len(shape) > 1:
                found.append((shape[0], prod(shape[1:])))
            else:
                found.append((prod(shape), 1))
        return found

    @override
    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the products, and what is sent as it is."""
        shapes = self.shapes
        lengths = [rows * columns for rows, columns in shapes]
        products: list[Tensor] = []
        for part, shape in zip(values.split(lengths), shapes, strict=True):
            product = self._product(part.view(shape), generator)
            products.append(product.flatten())
        return torch.cat(products) if products else values

    def _product(self, matrix: Tensor, generator: torch.Generator) -> Tensor:
        if not self._shrinks(*matrix.shape):
            return matrix
        exact = matrix.double()
        right = torch.randn(matrix.shape[1], self.rank, generator=generator, dtype=torch.float64).to(matrix.device)
        for _ in range(self.iterations):
            left: Tensor = torch.linalg.qr(exact @ right).Q
            right = exact.T @ left
        # The factors are sent in the model's type.
        return left.to(matrix.dtype) @ right.to(matrix.dtype).T

    def _shrinks(self, rows: int, columns: int) -> bool:
        return self.rank * (rows + columns) < rows * columns

    @override
    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the factors, and of what is sent as it is."""
        values = 0
        for rows, columns in self.shapes:
            values += self.rank * (rows + columns) if self._shrinks(rows, columns) else rows * columns
        return replace(payload, values=values)
