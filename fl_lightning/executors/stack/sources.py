"""The batches of a stack's clients.

Clients that hold plain tensors have theirs gathered: one ``index_select`` takes the samples of many steps of a client,
and a step's batch is a view of shape ``(K, B, ...)``. Any other data are read batch by batch, client by client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.evaluation.attributes import Attributes
from fl_lightning._lightning.loops.overrides import is_plain_transfer
from fl_lightning._lightning.stacks.watching import noting_reads
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.compiler.causes import errors_of_step
from fl_lightning.executors.stack.batches import StackedBatch, by_shape, copied, stack_batches
from fl_lightning.executors.stack.randomness import ClientGenerators
from fl_lightning.parts.messages import Task

#: Bytes of batches that are held at once: less than what `malloc` maps anew each time.
_HELD_BYTES = 24 * 2**20

#: Some clients' rows, and their batches of one shape.
Groups = list[tuple[Sequence[int], StackedBatch]]


def make_source(
    training: LocalTraining, tasks: Sequence[Task], transfer: Callable[[Any], Any], generators: ClientGenerators
) -> GatheredBatches | DrawnBatches:
    """Return the batches of a stack's clients.

    Args:
        training: Trains clients.
        tasks: The clients' tasks, longest first.
        transfer: Brings a batch to the module.
        generators: The clients' generators.
    """
    if is_plain_transfer(training.trainer) and GatheredBatches.suit(training, tasks):
        return GatheredBatches(training, tasks)
    return DrawnBatches(training, tasks, transfer, generators)


def active_clients(lengths: Sequence[int]) -> list[int]:
    """Return for each step how many clients take part, where clients make so many steps each, the longest first."""
    active: list[int] = []
    for number in range(len(lengths), 0, -1):
        active += [number] * (lengths[number - 1] - len(active))
    return active


# ---- any data ----


class DrawnBatches:
    """Batches of any kind: each client's are drawn at once, one client after the other, and then stacked.

    Args:
        training: Trains clients.
        tasks: The clients' tasks, in the order of rows.
        transfer: Brings a batch to the module.
        generators: The clients' generators, from which batches are drawn.

    Raises:
        CannotVectorize: If the data read the module's tensors or counters, which alone change between batches, or
            change its attributes, which its steps may read.
    """

    largest: int | None = None

    def __init__(
        self,
        training: LocalTraining,
        tasks: Sequence[Task],
        transfer: Callable[[Any], Any],
        generators: ClientGenerators,
    ) -> None:
        self._training = training
        self._tasks = tasks
        self._generators = generators
        self._drawn: dict[int, list[Any]] = {}
        self._batches: dict[int, Iterator[Any]] = {}
        #: The names of the module's attributes that the data read, and that the hooks of their transfer read.
        self._read_by_data: set[str] = set()
        self._read_by_hooks: set[str] = set()
        module = training.vector.module
        unread = Unread([*module.parameters(), *module.buffers()])
        attributes = Attributes(module)
        held = attributes.read()
        # In this order they train one after the other.
        for row in sorted(range(len(tasks)), key=lambda row: tasks[row].slot):
            with training.client_loop.hidden_counters(), generators.reading(row), errors_of_step(), unread:
                # Data may hand out the same memory again for the next batch.
                with noting_reads(module, self._read_by_data):
                    self._drawn[row] = [copied(batch) for batch in training.batches.iterate(tasks[row])]
                with noting_reads(module, self._read_by_hooks):
                    self._batches[row] = iter([transfer(batch) for batch in self._drawn[row]])
        changed = attributes.changed_since(held)
        if changed:
            attributes.write(held)
            name = changed[0][1]
            raise CannotVectorize(f"the data, or a hook of the batches' transfer, change `self.{name}` for each batch")

    def check_reads(self, kept: Collection[str]) -> None:
        """Raise ``CannotVectorize`` if data or hooks of their transfer read attributes in which steps keep something.

        Args:
            kept: The attributes' names.
        """
        for name in sorted(self._read_by_data | self._read_by_hooks):
            if name in kept:
                raise CannotVectorize(
                    f"the data, or a hook of the batches' transfer, read `self.{name}`, which in a stack does not yet "
                    "hold what clients keep"
                )

    def give_back(self) -> None:
        """Let clients that train one after the other have the batches.

        Those that torch's generators have drawn, or that depend on the module, are drawn again.
        """
        if not self._generators.data_draw and not self._read_by_data:
            for row, batches in self._drawn.items():
                self._training.batches.keep(self._tasks[row], batches)

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, those of one shape together with their rows."""
        drawn = [(row, next(self._batches[row])) for row in rows]
        return [(members, stack_batches(batches)) for members, batches in by_shape(drawn)]


class Unread(TorchFunctionMode):
    """Raises ``CannotVectorize`` where some tensors, or others in their memory, are read.

    Args:
        tensors: The tensors.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._memory = {_memory(tensor) for tensor in tensors} - {0}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        for leaf in pytree.tree_iter((args, kwargs)):
            if isinstance(leaf, Tensor) and _memory(leaf) in self._memory:
                raise CannotVectorize("the data read the module's weights or buffers, which change between batches")
        return function(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    """Return where a tensor's memory begins; 0 for none."""
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


# ---- plain tensors ----


class Tables(NamedTuple):
    """The batches of some steps, filled up.

    Attributes:
        begin: The first of the steps.
        end: The step after the last.
        tables: Their tensors, shape ``(steps, K, B, ...)`` each.
        sizes: For each step the sizes of the batches of the clients at work.
        weights: Of each sample in its client's batch, shape ``(steps, K, B)``; 0 where there is none.
    """

    begin: int
    end: int
    tables: list[Tensor]
    sizes: list[list[int]]
    weights: Tensor


class GatheredBatches:
    """Batches of clients that hold plain tensors: one gather for many steps of a client, then views.

    Args:
        training: Trains clients.
        tasks: The clients' tasks, longest first.
    """

    def __init__(self, training: LocalTraining, tasks: Sequence[Task]) -> None:
        self._training = training
        self._tasks = tasks
        #: Samples of the largest batch, B.
        self.largest = min(training.batches.largest(tasks), int(training.data.client_sizes.max()))
        self._clients = [_RowsOfClient(training, task) for task in tasks]
        self._active = active_clients([client.number for client in self._clients])
        self._bytes_per_sample = sum(tensor[:1].nbytes for tensor in self._clients[0].tensors)
        self._upload: DeviceCopy | None = None
        self._held: Tables | None = None
        #: The steps whose batches :meth:`next` has returned.
        self._steps = 0

    @staticmethod
    def suit(training: LocalTraining, tasks: Sequence[Task]) -> bool:
        """Whether the clients' batches can be had this way."""
        if int(training.trainer.accumulate_grad_batches) != 1:
            return False
        kinds: set[tuple[Any, ...]] = set()
        for task in tasks:
            if not training.batches.are_tensors(task.client):
                return False
            tensors, _ = training.batches.rows(task.client)
            if not all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in tensors):
                return False
            kinds.add(tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors))
        return len(kinds) == 1

    def check_reads(self, kept: Collection[str]) -> None:
        """Do nothing: tensors read no attributes."""

    def give_back(self) -> None:
        """Do nothing: the orders of samples depend on the tasks alone."""

    def sizes(self) -> set[int]:
        """Return all sizes that the clients' batches have."""
        size = self._training.data.batch_size or self.largest
        found: set[int] = set()
        for task in self._tasks:
            found.add(min(size, task.num_samples))
            found.add(task.num_samples % size)
        return found - {0}

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, which are the first ones."""
        held = self.at(self._steps)
        place = self._steps - held.begin
        self._steps += 1
        groups: Groups = []
        for size, members in groupby(rows, held.sizes[place].__getitem__):
            group = list(members)
            tensors = [table[place, group[0] : group[-1] + 1, :size] for table in held.tables]
            groups.append((group, StackedBatch([tensor.contiguous() for tensor in tensors])))
        return groups

    def at(self, step: int) -> Tables:
        """Return the batches of a step with those of as many next ones as are held at once; steps come in order."""
        if self._held is None or step >= self._held.end:
            bytes_of_step = self._active[step] * self.largest * self._bytes_per_sample
            steps = max(1, _HELD_BYTES // max(1, bytes_of_step))
            self._held = self._gather(step, self._active[step : step + steps])
        return self._held

    def _gather(self, begin: int, active: Sequence[int]) -> Tables:
        """Return the batches of the next steps; where one is short, its first sample is repeated with weight 0."""
        steps = len(active)
        clients = len(self._clients)
        size = self.largest
        device = self._training.vector.device
        # A step's batches are neighbours in memory, however many steps there are.
        shapes = [(steps, clients, size, *tensor.shape[1:]) for tensor in self._clients[0].tensors]
        if self._upload is None or self._upload.shapes != shapes:
            self._upload = DeviceCopy(shapes, [tensor.dtype for tensor in self._clients[0].tensors], device)
        tables = self._upload.host()
        sizes: list[list[int]] = [[] for _ in active]
        for row, client in enumerate(self._clients):
            # Fewer clients take part in later steps.
            while steps and active[steps - 1] <= row:
                steps -= 1
            client.read([table[:steps, row] for table in tables], size, sizes)
        sent = self._upload.send()
        counts = torch.tensor([own + [1] * (clients - len(own)) for own in sizes]).unsqueeze(2)
        is_sample = torch.arange(size) < counts
        weights = is_sample.to(self._training.vector.parameters[0].dtype) / counts
        return Tables(begin, begin + len(active), sent, sizes, weights.to(device))


class _RowsOfClient:
    """The batches of one client, whose samples are rows of tensors.

    Args:
        training: Trains clients.
        task: The client's task.
    """

    def __init__(self, training: LocalTraining, task: Task) -> None:
        self.tensors, self._indices = training.batches.rows(task.client)
        self.number = training.batches.number(task)
        self._orders = training.batches.orders(task)
        #: The samples of this epoch that have not been read, in their order.
        self._rest: Tensor | None = None

    def read(self, tables: Sequence[Tensor], size: int, sizes: list[list[int]]) -> None:
        """Read the next batches.

        Args:
            tables: Take them, shape ``(steps, B, ...)`` each; rows beyond a batch's samples repeat its first.
            size: Samples of a batch, B.
            sizes: Lists of sizes, one for each step, to which the batch's size is added.
        """
        step = 0
        steps = len(tables[0])
        while step < steps:
            chosen = self._samples((steps - step) * size)
            whole, rest = divmod(len(chosen), size)
            for tensor, table in zip(self.tensors, tables, strict=True):
                rows = tensor.index_select(0, chosen.to(tensor.device))
                table[step : step + whole] = rows[: whole * size].view(whole, size, *rows.shape[1:])
                if rest:
                    table[step + whole, :rest] = rows[whole * size :]
                    table[step + whole, rest:] = rows[whole * size]
            for _ in range(whole):
                sizes[step].append(size)
                step += 1
            if rest:
                sizes[step].append(rest)
                step += 1

    def _samples(self, most: int) -> Tensor:
        """Return the next samples of an epoch, so many at most."""
        samples = self._rest
        if samples is None:
            samples = next(self._orders)
            if self._indices is not None:
                samples = self._indices.index_select(0, samples)
        self._rest = samples[most:] if len(samples) > most else None
        return samples[:most]


class DeviceCopy:
    """Host tensors that are filled and brought to a device again and again.

    On CUDA they are pinned, so that the host goes on while they are copied. On a CPU they are used where they are.

    Args:
        shapes: Shapes of the tensors.
        dtypes: Types of the tensors.
        device: Device to which they are copied.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: torch.device) -> None:
        self._device = device
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._host: list[Tensor] = []
        for shape, dtype in zip(shapes, dtypes, strict=True):
            self._host.append(torch.empty(tuple(shape), dtype=dtype, pin_memory=self._copied is not None))
        #: Shapes of the tensors.
        self.shapes = list(shapes)

    def host(self) -> list[Tensor]:
        """Return the host tensors, to be filled; it waits until the last copy of them has been made."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host

    def send(self) -> list[Tensor]:
        """Return the tensors on the device."""
        sent = [tensor.to(self._device, non_blocking=self._copied is not None) for tensor in self._host]
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self._device))
        return sent
