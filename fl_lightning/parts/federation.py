"""The run and the client at work, as parts see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fl_lightning.parts.layout import Layout, Patterns
from fl_lightning.parts.messages import ClientResult, OptimizerState, Task
from fl_lightning.settings import PathLike

_Key = TypeVar("_Key", int, tuple[int, int])


class LocalClient(Protocol):
    """The client that is at work, as local objectives and samplers see it.

    Attributes:
        task: Its task.
        received: The model that it received, with what it keeps of its own, shape ``(size,)``; not to be written to.
        start: The model from which its training starts, shape ``(size,)``: the received one, unless the schedule makes
            another one of it.
        score: Its score at that model, if the sampler asks for one.
    """

    task: Task
    received: Tensor
    start: Tensor
    score: float | None

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

    def losses(self, batch_size: int | str | None = "data") -> Iterator[tuple[float, int]]:
        """Yield the loss of each batch at the module's present weights, and its number of samples.

        Args:
            batch_size: As for :meth:`gradients`.
        """
        ...

    def loss(self) -> float:
        """Return the mean loss of the client's samples at the module's present weights, in eval mode."""
        ...

    def targets(self) -> Tensor:
        """Return the targets of the client's samples, in their stored order."""
        ...


class ForwardPass(Protocol):
    """The forward pass of a ``training_step``, as the loss of a :class:`ChangedLoss` sees it.

    The output layer is the ``output_layer`` of the changed loss; else the one linear layer (it has ``in_features`` and
    ``out_features``, as ``nn.Linear`` and layers with adapters have) on which the loss depends and after which no other
    one comes. Dimensions but the last count as rows; where the step calls the layer several times with gradients, the
    rows follow each other.

    Attributes:
        module: The LightningModule, with the client's present weights.
        batch: The batch, as ``training_step`` gets it.
    """

    module: nn.Module
    batch: Any

    @property
    def target(self) -> Tensor:
        """The batch's targets, shape ``(rows,)``."""
        ...

    @property
    def features(self) -> Tensor:
        """The input of the output layer, shape ``(rows, width)``."""
        ...

    @property
    def logits(self) -> Tensor:
        """The output of the output layer, shape ``(rows, classes)``, before a shift."""
        ...

    def of(self, model: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and logits of another model, shape ``(size,)``, in eval mode and without gradients.

        The step runs once more with the model's tensors, the same random numbers, and no trace in logs, metrics,
        buffers and attributes. So the model sees the inputs, masks and lengths that the client's model saw.
        """
        ...

    def loss_of(self, logits: Tensor) -> Tensor:
        """Return what the step's loss is with other logits, shape ``(rows, classes)``, which alone get gradients.

        The step runs once more, as for :meth:`of`, in its own mode and with its own weights.
        """
        ...


def _sum_alone(tensor: Tensor) -> Tensor:
    """Return the sum of a single process's tensor: the tensor itself."""
    return tensor


def _gather_alone(mine: Any) -> list[Any]:
    """Return the objects of a single process."""
    return [mine]


def _no_local_work(kind: str) -> Sequence[int]:
    """Return the work of no client."""
    return []


def _no_messages() -> Sequence[tuple[int, int]]:
    """Return the bits of the messages of no client."""
    return []


def _no_optimizer_state() -> OptimizerState:
    """Return what optimizers hold that hold nothing."""
    return OptimizerState(torch.zeros(0), torch.zeros(0))


@dataclass(frozen=True)
class Federation:
    """The run, as the parts of an algorithm see it.

    Attributes:
        sizes: Samples n_k of each training client, shape ``(K,)``; where data change, those of the round: the array is
            written to before a round begins, and a client with 0 cannot be reached.
        model: The first model, shape ``(size,)``: parameters first, then buffers.
        layout: Where the module's tensors lie in the model, and which of them are trained.
        seed: The run's seed.
        rank: This process.
        num_ranks: Number of processes.
        state_dir: Folder for clients' vectors; ``None`` keeps them in memory.
        sum_over_ranks: Returns the sum of a tensor over all processes, with one process the tensor itself; call it on
            all of them.
        gather: Returns the object of every process, in the order of ranks; call it on all of them.
        local_work: Returns the ``"samples"`` that each client's local training goes through, or its ``"steps"``
            (batches), shape ``(K,)``.
        message_bits: Returns, for each client, the bits of a message to it and of its answer.
        optimizer_state: Returns what a client's optimizers hold before its first step; ``ValueError`` if they hold more
            than vectors can.
        replicates: Whether every process keeps the vectors of all clients.
        max_rounds: After how many rounds in all the fit ends; ``None`` if that is not known.
        traveling: Names of the parameters that all exchanges send; ``None`` if that is all of them.
        sizes_change: Whether :attr:`sizes` may change between rounds.
    """

    sizes: np.ndarray
    model: Tensor
    layout: Layout
    seed: int = 0
    rank: int = 0
    num_ranks: int = 1
    state_dir: PathLike | None = None
    sum_over_ranks: Callable[[Tensor], Tensor] = _sum_alone
    gather: Callable[[Any], list[Any]] = _gather_alone
    local_work: Callable[[str], Sequence[int]] = _no_local_work
    message_bits: Callable[[], Sequence[tuple[int, int]]] = _no_messages
    optimizer_state: Callable[[], OptimizerState] = _no_optimizer_state
    replicates: bool = False
    max_rounds: int | None = None
    traveling: Sequence[str] | None = None
    sizes_change: bool = False

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return the content of a pickle: all but the links to other processes and to the trainer."""
        alone = {
            "sum_over_ranks": _sum_alone,
            "gather": _gather_alone,
            "local_work": _no_local_work,
            "message_bits": _no_messages,
            "optimizer_state": _no_optimizer_state,
        }
        return {**self.__dict__, **alone}

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        return len(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors of the model, in its order."""
        return self.layout.names

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Shapes of all tensors of the model."""
        return self.layout.shapes

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of values of each trained parameter, in the model's order."""
        return self.layout.lengths[: self.layout.num_trained]

    @property
    def num_parameters(self) -> int:
        """Length of the model's first part, the trained parameters; buffers follow."""
        return self.layout.num_parameters

    @cached_property
    def traveling_places(self) -> Tensor | None:
        """Places of the parameters that all exchanges send; ``None`` if that is all of them."""
        if self.traveling is None:
            return None
        parameters, _ = self.layout.split(self.mask(self.traveling))
        return parameters.nonzero().squeeze(1)

    def traveling_values(self, values: Tensor) -> Tensor:
        """Return those of the parameters' values that all exchanges send, shape ``(num_sent,)``."""
        places = self.traveling_places
        return values if places is None else values[places]

    def filled(self, values: Tensor, like: Tensor) -> Tensor:
        """Return ``like``, shape ``(num_parameters,)``, with these values at the places that are sent."""
        places = self.traveling_places
        return values if places is None else like.index_copy(0, places, values.to(like.dtype))

    def weights(self, weighting: str) -> np.ndarray | None:
        """Return the clients' weights in a mean over all, shape ``(K,)``: their sizes; ``None`` if they are equal.

        Raises:
            ValueError: If these change from round to round.
        """
        if weighting != "samples":
            return None
        self.check_sizes_stay('`weighting="samples"` of a mean over all clients', 'Give `weighting="uniform"`.')
        return self.sizes

    def check_sizes_stay(self, what: str, hint: str) -> None:
        """Raise ``ValueError`` if the clients' numbers of samples change, on which something counts from the start.

        Args:
            what: What counts on them.
            hint: What to do.
        """
        if self.sizes_change:
            raise ValueError(
                f"{what} counts on numbers of samples that stay, and those of this data module change from round to "
                f"round. {hint}"
            )

    def zeros(self) -> Tensor:
        """Return a vector of zeros, shape ``(num_parameters,)``."""
        parameters, _ = self.layout.split(self.model)
        return torch.zeros_like(parameters)

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a model, or of only its parameters, by the names of the module's tensors."""
        return self.layout.named(vector)

    def matching(self, patterns: Patterns, argument: str = "pattern") -> list[str]:
        """Return the names of the model's tensors that match; see :meth:`Layout.matching`."""
        return self.layout.matching(patterns, argument)

    def has_tensors_of(self, layer: str) -> bool:
        """Return whether the model has tensors of a submodule: what is frozen may stay out of it."""
        return self.layout.has_tensors_of(layer)

    def places(self, patterns: Patterns, argument: str = "pattern") -> frozenset[int]:
        """Return the places of the trained parameters whose names match; see :meth:`Layout.places`."""
        return self.layout.places(patterns, argument)

    def mask(self, names: Iterable[str]) -> Tensor:
        """Return which values of the model belong to the named tensors, booleans of shape ``(size,)``."""
        return self.layout.mask(names, self.model.device)

    def gather_results(self, mine: Sequence[ClientResult]) -> Sequence[ClientResult]:
        """Return the results of all processes, in the order of ranks."""
        if self.num_ranks == 1:
            return mine
        results: list[ClientResult] = []
        for share in self.gather([result.to(torch.device("cpu")) for result in mine]):
            results += [result.to(self.model.device) for result in share]
        return results

    def join(self, mine: dict[_Key, Any]) -> dict[_Key, Any]:
        """Return the entries of all processes' mappings."""
        if self.num_ranks == 1:
            return mine
        on_cpu = dict(mine)
        for key, value in mine.items():
            if isinstance(value, (Tensor, ClientResult)):
                on_cpu[key] = value.to(torch.device("cpu"))
        joined: dict[_Key, Any] = {}
        for share in self.gather(on_cpu):
            joined.update(share)
        return joined
