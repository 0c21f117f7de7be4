"""Random numbers of a stack's clients: each client's are drawn as the client alone would draw them.

Each client has generators, seeded as when it trains alone. If the worked example dropped some of its inputs, the one
``bernoulli`` of the stack, of shape ``(K, B, in)``, would be K draws of shape ``(B, in)``, one from each client's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.seeding import (
    Stream,
    changed_generators,
    derive_seed,
    global_states,
    preserved_generators,
    seed_generators,
    set_global_states,
)

#: In the names of functions that may draw.
_RANDOM = (
    "attention",
    "bernoulli",
    "binomial",
    "cauchy",
    "dirichlet",
    "dropout",
    "encoder",
    "exponential",
    "gamma",
    "geometric",
    "gumbel",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rrelu",
    "sample",
    "uniform",
)


def draws_by_name(node: fx.Node) -> bool:
    """Whether a node's function may draw random numbers."""
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return node.op.startswith("call") and any(word in name for word in _RANDOM)


class ClientGenerators:
    """The global generators of each client of a stack, seeded when something draws for the first time.

    Args:
        run_seed: The fit's seed.
        parts: With what else each client's generators are seeded.
        device: Device of the module.
    """

    def __init__(self, run_seed: int, parts: Sequence[Sequence[int]], device: torch.device) -> None:
        self._run_seed = run_seed
        self._parts = parts
        self.device = device
        #: The states of all generators but torch's on the CPU, by row.
        self._others: dict[int, tuple[Any, ...]] = {}
        #: Whether data have drawn.
        self.data_draw = False
        #: Whether a step has drawn.
        self.steps_draw = False

    @cached_property
    def _seeds(self) -> list[int]:
        return [derive_seed(self._run_seed, Stream.CLIENT, *own) for own in self._parts]

    @cached_property
    def _torch(self) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in self._seeds]

    @contextmanager
    def active(self, row: int) -> Iterator[None]:
        """Let everything that is drawn from global generators come from one client's."""
        present = global_states(self.device)
        set_global_states(self.state(row), self.device)
        try:
            yield
        finally:
            self.rewind([row], [global_states(self.device)])
            set_global_states(present, self.device)

    @contextmanager
    def reading(self, row: int) -> Iterator[None]:
        """Let a client's data draw from its generators, all batches before the first step."""
        before = self.state(row)
        with self.active(row):
            yield
        after = self.state(row)
        self.data_draw = self.data_draw or bool(changed_generators(before, after))

    def state(self, row: int) -> tuple[Any, ...]:
        """Return the states of a client's generators, as :func:`~fl_lightning.seeding.set_global_states` takes them."""
        if row not in self._others:
            with preserved_generators(self.device):
                seed_generators(self._seeds[row])
                self._others[row] = global_states(self.device)[1:]
        return self._torch[row].get_state(), *self._others[row]

    def rewind(self, rows: Sequence[int], states: Sequence[tuple[Any, ...]]) -> None:
        """Put clients' generators into states that :meth:`state` returned."""
        for row, (own, *others) in zip(rows, states, strict=True):
            self._torch[row].set_state(own)
            self._others[row] = tuple(others)

    def drawing(self, rows: Sequence[int], sizes: Sequence[int] | None = None, largest: int = 0) -> PerClientDraws:
        """Return a mode in which operations on stacks draw each client's share from the client's generators."""
        return PerClientDraws(self, rows, sizes, largest)

    def cpu(self, row: int) -> torch.Generator:
        """Return a client's generator of torch on the CPU."""
        return self._torch[row]

    def note_draw(self) -> None:
        """Note that a step draws.

        Raises:
            CannotVectorize: If data have drawn: alone, the draws of batches and of steps take turns.
        """
        self.steps_draw = True
        if self.data_draw:
            raise CannotVectorize("both the data and `training_step` draw random numbers, which take turns alone")


class PerClientDraws(TorchDispatchMode):
    """Lets random operations on stacked tensors, shape ``(K, ...)``, draw row by row.

    It sees operations beneath ``torch.func.vmap``, where the clients' tensors are stacked.

    Args:
        generators: The generators of the clients.
        rows: The clients in the stack's rows.
        sizes: The samples in each row's batch, where others are filled up to ``largest``.
        largest: The samples in a batch that is filled up.
    """

    def __init__(
        self, generators: ClientGenerators, rows: Sequence[int], sizes: Sequence[int] | None = None, largest: int = 0
    ) -> None:
        super().__init__()
        self.generators = generators
        self.rows = rows
        self._sizes = sizes
        self._largest = largest
        self._permutations = 0

    def __torch_dispatch__(
        self, function: OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **(kwargs or {}))
        return self.draw(function, args, kwargs or {})

    def draw(self, function: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a random operation client by client."""
        if without_dropout(function, args, kwargs):
            return function(*args, **kwargs)
        self.generators.note_draw()
        if kwargs.get("generator") is not None:
            raise CannotVectorize("`training_step` draws from a generator that all clients share")
        if function is torch.ops.aten.randperm.default:
            # `vmap` calls it once for each client.
            row = self.rows[self._permutations % len(self.rows)]
            self._permutations += 1
            return self._draw(row, function, args, kwargs)
        given = list(zip(_arguments(function), args, strict=False))
        shares = [self._shares(name, value) for name, value in given]
        shares_by_name = {name: self._shares(name, value) for name, value in kwargs.items()}
        drawn = []
        for place, row in enumerate(self.rows):
            own_args = [share[place] for share in shares]
            own_kwargs = {name: share[place] for name, share in shares_by_name.items()}
            drawn.append(self._draw(row, function, own_args, own_kwargs))
        if function._schema.is_mutable:
            self._fill_in_place(args[0])
            return args[0]
        results = [drawn] if isinstance(drawn[0], Tensor) else list(zip(*drawn, strict=True))
        shapes = [self._shape_of_share(name, value) for name, value in (*given, *kwargs.items())]
        if any(self._dim_of_samples(shape) is not None for shape in shapes):
            results = [list(map(self._filled, own)) for own in results]
        joined = tuple(map(torch.cat, results))
        return joined[0] if isinstance(drawn[0], Tensor) else joined

    def draw_on_host(self, draw: Callable[[], Tensor]) -> Tensor:
        """Return what a function draws from global generators, from each client's, shape ``(K, ...)``."""
        self.generators.note_draw()
        drawn = []
        for row in self.rows:
            with self.generators.active(row):
                drawn.append(draw())
        return torch.stack(drawn).to(self.generators.device)

    def _draw(self, row: int, function: Any, args: Any, kwargs: Any) -> Any:
        if self.generators.device.type == "cpu" and "generator" in _arguments(function):
            return function(*args, **kwargs, generator=self.generators.cpu(row))
        with self.generators.active(row):
            return function(*args, **kwargs)

    def _shares(self, name: str, value: Any) -> Sequence[Any]:
        """Return each client's part of an operation's argument."""
        number = len(self.rows)
        shape = self._shape_of_share(name, value)
        if shape is None:
            return [value] * number
        dim = self._dim_of_samples(shape)
        if name == "size":
            if dim is None:
                return [shape] * number
            return [[*shape[:dim], size, *shape[dim + 1 :]] for size in self._sizes or ()]
        if len(value) % number:
            raise CannotVectorize("a random operation of several clients cannot be taken apart")
        shares: Sequence[Tensor] = value.chunk(number)
        if dim is None:
            return shares
        return [own.narrow(dim, 0, size) for own, size in zip(shares, self._sizes or (), strict=True)]

    def _shape_of_share(self, name: str, value: Any) -> list[int] | None:
        """Return the shape of each client's part of an argument; ``None`` for what all clients share."""
        if name == "size":
            # The shape of something new.
            return [value[0] // len(self.rows), *value[1:]]
        if isinstance(value, Tensor) and value.dim():
            return [len(value) // len(self.rows), *value.shape[1:]]
        return None

    # ---- batches that are filled up ----

    def _dim_of_samples(self, shape: Sequence[int] | None) -> int | None:
        """Return the dimension of a client's share that has samples, where batches are filled up."""
        if self._sizes is None or shape is None:
            return None
        dim = self._sample_dim(shape)
        return dim if shape[dim] == self._largest else None

    def _sample_dim(self, shape: Sequence[int]) -> int:
        """Return the dimension in which a share would have samples: a dimension of one client may come before it."""
        return 1 if shape[0] == 1 and len(shape) > 1 and self._largest > 1 else 0

    def _filled(self, share: Tensor) -> Tensor:
        """Return a share whose samples are filled up with the first."""
        dim = self._sample_dim(share.shape)
        missing = self._largest - share.shape[dim]
        return torch.cat([share, *[share.narrow(dim, 0, 1)] * missing], dim)

    def _fill_in_place(self, value: Tensor) -> None:
        """Fill up what was not drawn with the first sample's."""
        shares = value.chunk(len(self.rows))
        dim = self._dim_of_samples(shares[0].shape)
        if dim is None or self._sizes is None:
            return
        for own, size in zip(shares, self._sizes, strict=True):
            if size < self._largest:
                own.narrow(dim, size, self._largest - size).copy_(own.narrow(dim, 0, 1))


@cache
def _arguments(function: OpOverload) -> list[str]:
    return [argument.name for argument in function._schema.arguments]


def without_dropout(function: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether this is attention that drops nothing."""
    names = _arguments(function)
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    p = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
    return not p


@contextmanager
def nothing_drawn(device: torch.device) -> Iterator[None]:
    """Raise ``CannotVectorize`` if something is drawn from the global generators, and put them back."""
    before = global_states(device)
    seed = torch.initial_seed()
    try:
        yield
    finally:
        is_seeded = torch.initial_seed() != seed
        drawn_from = changed_generators(before, global_states(device))
        if drawn_from:
            set_global_states(before, device)
    if is_seeded:
        raise CannotVectorize("`training_step` seeds torch's generator (`torch.manual_seed`), which all clients share")
    if drawn_from:
        kinds = "torch's" if drawn_from == {"torch"} else "numpy's or Python's"
        raise CannotVectorize(f"`training_step` draws from {kinds} generator, which all clients share")
