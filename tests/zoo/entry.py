"""An entry of the zoo: a module that somebody might write, its clients' data, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg

FEATURES, CLASSES = 6, 3
#: Clients of one, two, four, two, five and three batches of four samples; most last batches have three samples.
SIZES = (3, 8, 15, 7, 19, 11)
#: As many batches, of which the last have one, two, three or four samples: PyTorch captures a step for any size.
UNEQUAL = (3, 8, 13, 6, 17, 10)
#: As many batches, all of four samples: PyTorch captures one step, and there is none of shorter batches to compare.
WHOLE = (4, 8, 16, 8, 20, 12)


@dataclass(frozen=True)
class Data:
    """What the clients hold: tensors, or lists of samples with a function that makes batches of them.

    Attributes:
        clients: For each client a tuple of tensors, or a list of samples.
        collate: Makes a batch of a list of samples; ``None`` for tensors.
    """

    clients: Sequence[Any]
    collate: Callable[[list[Any]], Any] | None = None

    def sizes(self) -> list[int]:
        """Return the number of samples of each client."""
        return [len(held) if self.collate else len(held[0]) for held in self.clients]

    def batch(self, client: int, positions: list[int]) -> Any:
        """Return the samples of a client at these positions as one batch."""
        held = self.clients[client]
        if self.collate is None:
            return [tensor[positions] for tensor in held]
        return self.collate([held[position] for position in positions])


def vectors(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return inputs of shape (n, FEATURES) and classes, which differ between clients."""
    return tensors((FEATURES,), sizes, dtype)


def images(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return images of shape (n, 2, 6, 6) and classes."""
    return tensors((2, 6, 6), sizes, dtype)


def tensors(shape: tuple[int, ...], sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return normal inputs of a shape, shifted by the client's own mean, and classes."""
    generator = torch.Generator().manual_seed(0)

    def client(size: int) -> tuple[Tensor, Tensor]:
        shift = torch.randn(shape, generator=generator)
        x = torch.randn(size, *shape, generator=generator) + 0.5 * shift
        return x.to(dtype), torch.randint(0, CLASSES, (size,), generator=generator)

    return Data([client(size) for size in sizes])


def words(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return sentences of shape (n, 5), words 1 to 9 with zeros after the last, and classes."""
    generator = torch.Generator().manual_seed(0)

    def client(size: int) -> tuple[Tensor, Tensor]:
        sentences = torch.randint(1, 10, (size, 5), generator=generator)
        lengths = torch.randint(2, 6, (size, 1), generator=generator)
        sentences[torch.arange(5) >= lengths] = 0
        return sentences, torch.randint(0, CLASSES, (size,), generator=generator)

    return Data([client(size) for size in sizes])


def average(**options: Any) -> AggregationCallback:
    """Return federated averaging of all clients."""
    return FedAvg(1.0, **options)


@dataclass(frozen=True, eq=False)
class Entry:
    """A module or callback, and how it is trained.

    Attributes:
        name: What is special about it.
        module: Makes the module; called with torch seeded.
        data: Makes the clients' data of the given sizes and floating-point type.
        datamodule: Makes the data module, if it is not one of these data.
        sizes: The clients' numbers of samples.
        callbacks: Makes the callbacks beside the aggregation's.
        trainer: Arguments of the trainer.
        loggers: How many loggers it has.
        federated: Arguments of the aggregation callback.
        algorithm: Makes the aggregation callback of those arguments, instead of federated averaging.
        dtype: Of the module and of floating-point data.
        tolerance: Relative, of weights and values.
        outside: Returns what the module keeps outside of itself; it empties that when it is made.
        not_by_hand: How names of logged values begin that the hand-written loop leaves out.
        by_hand: Whether the hand-written loop can train it; otherwise only executors are compared with each other.
        validates: Whether there is a validation set, the first client's samples.
        stacked: Whether its clients can be trained at once.
        long: Whether it is tried in long runs alone.
    """

    name: str
    module: Callable[[], L.LightningModule]
    data: Callable[[Sequence[int], torch.dtype], Data] = vectors
    datamodule: Callable[[], L.LightningDataModule] | None = None
    sizes: Sequence[int] = SIZES
    callbacks: Callable[[], list[Callback]] = list
    trainer: Mapping[str, Any] = field(default_factory=dict)
    loggers: int = 1
    federated: Mapping[str, Any] = field(default_factory=dict)
    algorithm: Callable[..., AggregationCallback] = average
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-6
    outside: Callable[[], Any] = dict
    not_by_hand: tuple[str, ...] = ()
    by_hand: bool = True
    validates: bool = False
    stacked: bool = True
    long: bool = False

    def make(self) -> L.LightningModule:
        """Return the module, with weights that depend on nothing but the entry."""
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            return self.module().to(self.dtype)


def one_by_one(*entries: Entry) -> list[Entry]:
    """Return entries of which no executor trains clients at once."""
    return [replace(entry, stacked=False) for entry in entries]
