"""The run and the client at work, as parts see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning.checks import PathLike
from fl_lightning.parts.messages import ClientResult, Payload, Task

#: Names of tensors or submodules, or shell patterns of names.
Patterns = str | Sequence[str]


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
    """The forward pass of a ``training_step``, as a loss of a :class:`Correction` sees it.

    The output layer is the correction's ``output_layer``; else the one linear layer (it has ``in_features`` and
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
    """Return the sum of a single process's tensor: a copy."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _gather_alone(mine: Any) -> list[Any]:
    """Return the objects of a single process."""
    return [mine]


def _no_local_work(kind: str) -> Sequence[int]:
    """Return the work of no client."""
    return []


@dataclass(frozen=True)
class Federation:
    """The run, as the parts of an algorithm see it.

    Attributes:
        sizes: Samples n_k of each training client, shape ``(K,)``.
        model: The first model, shape ``(size,)``: parameters first, then buffers.
        lengths: Number of values of each parameter tensor, in the model's order.
        names: Names of all tensors of the model, in its order.
        shapes: Their shapes.
        seed: The run's seed.
        rank: This process.
        num_ranks: Number of processes.
        state_dir: Folder for clients' vectors; ``None`` keeps them in memory.
        sum_over_ranks: Returns the sum of a tensor over all processes, as a new tensor; call it on all of them.
        gather: Returns the object of every process, in the order of ranks; call it on all of them.
        local_work: Returns the ``"samples"`` that each client's local training goes through, or its ``"steps"``
            (batches), shape ``(K,)``.
        bits_per_value: Bits of the numbers of each of the model's tensors, as the module holds it; one number for all.
        replicates: Whether every process keeps the vectors of all clients.
        max_rounds: After how many rounds in all the fit ends; ``None`` if that is not known.
        traveling: Names of the parameters that all exchanges send; ``None`` if that is all of them.
        shared_names: All names of the tensors that have several, by the one in ``names``: a list for each layer that
            holds the tensor, with more than one name where the layer itself has more.
    """

    sizes: np.ndarray
    model: Tensor
    lengths: Sequence[int]
    names: Sequence[str] = ()
    shapes: Sequence[torch.Size] = ()
    seed: int = 0
    rank: int = 0
    num_ranks: int = 1
    state_dir: PathLike | None = None
    sum_over_ranks: Callable[[Tensor], Tensor] = _sum_alone
    gather: Callable[[Any], list[Any]] = _gather_alone
    local_work: Callable[[str], Sequence[int]] = _no_local_work
    bits_per_value: int | Sequence[int] = 32
    replicates: bool = False
    max_rounds: int | None = None
    traveling: Sequence[str] | None = None
    shared_names: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of a pickle: all but the links to other processes and to the trainer."""
        alone = {"sum_over_ranks": _sum_alone, "gather": _gather_alone, "local_work": _no_local_work}
        return {**self.__dict__, **alone}

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        return len(self.sizes)

    @property
    def num_parameters(self) -> int:
        """Length of the model's first part, the trained parameters; buffers follow."""
        return sum(self.lengths)

    @cached_property
    def traveling_places(self) -> Tensor | None:
        """Places of the parameters that all exchanges send; ``None`` if that is all of them."""
        if self.traveling is None:
            return None
        return self.mask(self.traveling)[: self.num_parameters].nonzero().squeeze(1)

    def weights(self, weighting: str) -> np.ndarray | None:
        """Return the clients' weights in a mean over all, shape ``(K,)``: their sizes; ``None`` if they are equal."""
        return self.sizes if weighting == "samples" else None

    def zeros(self) -> Tensor:
        """Return a vector of zeros, shape ``(num_parameters,)``."""
        return torch.zeros_like(self.model[: self.num_parameters])

    def payload(self, places: Iterable[int]) -> Payload:
        """Return the message that holds the model's tensors at these places, each number as the module holds it."""
        lengths, bits = [shape.numel() for shape in self.shapes] or self.lengths, self.bits_per_value
        sent = [(lengths[place], bits if isinstance(bits, int) else bits[place]) for place in places]
        values, total = sum(length for length, _ in sent), sum(length * each for length, each in sent)
        if not values or total % values == 0:
            return Payload(values, total // max(1, values))
        return Payload(values, math.nextafter(total / values, 0))  # so that rounding up gives the total

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of a model, or of only its parameters, by the names of the module's tensors."""
        views: dict[str, Tensor] = {}
        begin = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            if begin >= len(vector):
                break
            views[name] = vector[begin : begin + shape.numel()].view(shape)
            begin += shape.numel()
        return views

    def matching(self, patterns: Patterns, argument: str = "pattern") -> list[str]:
        """Return the names of the model's tensors that match one of the patterns.

        A tensor that several layers share, such as the weight of an output layer that is tied to an embedding, must
        match as a tensor of each of them, or of none.

        Args:
            patterns: Names of tensors or of submodules (``"head"``), or shell patterns of names (``"*.bn*"``); one or
                several.
            argument: What the user calls them, for the error.

        Raises:
            ValueError: If a pattern matches nothing, or a shared tensor as one of only some layers.
        """
        patterns = [patterns] if isinstance(patterns, str) else patterns
        found: list[str] = []
        used: set[str] = set()
        for name in self.names:
            layers = self._layers_of(name)
            matched = []
            for names in layers:
                hits = [pattern for pattern in patterns if any(_matches(each, pattern) for each in names)]
                matched.append(bool(hits))
                used.update(hits)
            if any(matched) and not all(matched):
                shown = " and ".join(names[0] for names in layers)
                missing = [names[0] for names, is_named in zip(layers, matched, strict=True) if not is_named]
                raise ValueError(
                    f"`{argument}` must name all or none of the layers that share a tensor: {shown} are one, got "
                    f"{patterns}, which leave out {missing}. Add these names, or name other tensors alone."
                )
            if all(matched):
                found.append(name)
        if not patterns or not used.issuperset(patterns):
            shown = ", ".join(self.names[:8]) + (", ..." if len(self.names) > 8 else "")
            raise ValueError(f"`{argument}` must match parameters or buffers of the module, {shown}; got {patterns}.")
        return found

    def _layers_of(self, name: str) -> Sequence[Sequence[str]]:
        """Return all names of a tensor, a list for each layer that holds it."""
        return self.shared_names.get(name, [[name]])

    def has_tensors_of(self, layer: str) -> bool:
        """Return whether the model has tensors of a submodule: what is frozen may stay out of it."""
        for name in self.names:
            for names in self._layers_of(name):
                if any(each.startswith(f"{layer}.") for each in names):
                    return True
        return False

    def places(self, patterns: Patterns, argument: str = "pattern") -> frozenset[int]:
        """Return the places of the parameter tensors whose names match, as :meth:`matching` says."""
        found = set(self.matching(patterns, argument))
        return frozenset(place for place, name in enumerate(self.names[: len(self.lengths)]) if name in found)

    def mask(self, names: Sequence[str]) -> Tensor:
        """Return which values of the model belong to the named tensors, booleans of shape ``(size,)``."""
        mask = torch.zeros(len(self.model), dtype=torch.bool, device=self.model.device)
        views = self.tensors(mask)
        for name in names:
            views[name].fill_(True)
        return mask

    def gather_results(self, mine: Sequence[ClientResult]) -> Sequence[ClientResult]:
        """Return the results of all processes, in the order of ranks."""
        if self.num_ranks == 1:
            return mine
        shares = self.gather([result.to(torch.device("cpu")) for result in mine])
        return [result.to(self.model.device) for share in shares for result in share]

    def join(self, mine: dict[int, Any]) -> dict[int, Any]:
        """Return the entries of all processes' mappings, in the order of their keys."""
        if self.num_ranks == 1:
            return mine
        cpu, kinds = torch.device("cpu"), (Tensor, ClientResult)
        on_cpu = {key: value.to(cpu) if isinstance(value, kinds) else value for key, value in mine.items()}
        entries = [entry for share in self.gather(on_cpu) for entry in share.items()]
        return dict(sorted(entries, key=lambda entry: entry[0]))


def find_shared_names(module: nn.Module, names: Iterable[str]) -> dict[str, list[list[str]]]:
    """Return all names of those of a module's named tensors that have several; see :attr:`Federation.shared_names`.

    Args:
        module: The module.
        names: One name of each tensor.
    """
    known: dict[str, Tensor] = {}
    held: dict[int, dict[tuple[int, str], list[str]]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for key, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                name = f"{path}.{key}".lstrip(".")
                known[name] = tensor
                # a layer that has several names holds the tensor once
                held.setdefault(id(tensor), {}).setdefault((id(part), key), []).append(name)
    found = {name: list(held[id(known[name])].values()) for name in names if name in known}
    return {name: layers for name, layers in found.items() if layers != [[name]]}


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)
