"""Random numbers of a stack's clients: each client's are drawn as the client alone would draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning.seeding import changed_generators, global_states, preserved_generators, set_global_states

_Draw = Callable[..., Any]


class ClientGenerators:
    """The global generators of each client of a stack.

    Args:
        seeds: Seeds the global generators for a client; one for each row.
        device: Device of the module.
    """

    def __init__(self, seeds: Sequence[Callable[[], None]], device: torch.device) -> None:
        self._device = device
        self._states: list[Any] = []
        self._torch: list[torch.Generator] = []
        with preserved_generators(device):
            for seed in seeds:
                seed()
                self._states.append(global_states(device))
                self._torch.append(torch.Generator().set_state(self._states[-1][0]))

    @contextmanager
    def active(self, row: int) -> Iterator[None]:
        """Let everything that is drawn from global generators come from one client's."""
        present = global_states(self._device)
        own = self._torch[row]
        set_global_states((own.get_state(), *self._states[row][1:]), self._device)
        try:
            yield
        finally:
            self._states[row] = after = global_states(self._device)
            own.set_state(after[0])
            set_global_states(present, self._device)

    def states(self, rows: Sequence[int]) -> list[Any]:
        """Return the states of clients' generators."""
        return [(self._torch[row].get_state(), *self._states[row][1:]) for row in rows]

    def rewind(self, rows: Sequence[int], states: Sequence[Any]) -> None:
        """Put clients' generators back into states in which they have been."""
        for row, state in zip(rows, states, strict=True):
            self._states[row] = state
            self._torch[row].set_state(state[0])

    def resume(self, row: int) -> None:
        """Put the global generators into the states of a client's."""
        set_global_states(self.states([row])[0], self._device)

    @contextmanager
    def twin(self, row: int) -> Iterator[int]:
        """Yield the row of another client that draws meanwhile what the one in ``row`` draws."""
        self._states += self.states([row])
        self._torch.append(torch.Generator().set_state(self._states[-1][0]))
        try:
            yield len(self._states) - 1
        finally:
            self._states.pop()
            self._torch.pop()

    def drawing(self, rows: Sequence[int]) -> PerClientDraws:
        """Return a mode in which operations on stacks draw each client's share from the client's generators."""
        return PerClientDraws(self, rows)

    def cpu(self, row: int) -> torch.Generator:
        """Return a client's generator of torch on the CPU."""
        return self._torch[row]


class PerClientDraws(TorchDispatchMode):
    """Lets random operations on stacked tensors, shape ``(K, ...)``, draw row by row.

    It sees operations beneath ``torch.func.vmap``, where the clients' tensors are stacked.

    Args:
        generators: The generators of the clients.
        rows: The clients in the stack's rows.
    """

    def __init__(self, generators: ClientGenerators, rows: Sequence[int]) -> None:
        super().__init__()
        self._generators, self._rows = generators, rows
        self._permutations = 0
        #: Whether anything was drawn.
        self.drew = False

    @contextmanager
    def of_twins(self) -> Iterator[None]:
        """Let the only client in the stack draw in the second of two rows, and one that draws the same in the first."""
        with self._generators.twin(self._rows[0]) as twin:
            twins = PerClientDraws(self._generators, [twin, *self._rows])
            with twins:
                yield
        self.drew = self.drew or twins.drew

    @contextmanager
    def of_one(self) -> Iterator[None]:
        """Let the only client in the stack draw as it does alone."""
        own = self._generators.cpu(self._rows[0])
        before = own.get_state()
        with self._generators.active(self._rows[0]):
            yield
        self.drew = self.drew or not torch.equal(before, own.get_state())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in function.tags or _without_dropout(function, args, kwargs):
            return function(*args, **kwargs)
        self.drew = True
        if kwargs.get("generator") is not None:
            raise CannotVectorize("`training_step` draws from a generator of its own, which all clients share")
        if function is torch.ops.aten.randperm.default:  # `vmap` calls it once for each client
            row = self._rows[self._permutations % len(self._rows)]
            self._permutations += 1
            return self._draw(row, function, args, kwargs)
        own = [self._share(function, place, args, kwargs) for place in range(len(self._rows))]
        shares = [self._draw(row, function, *share) for row, share in zip(self._rows, own, strict=True)]
        if function._schema.is_mutable:
            return args[0]
        if isinstance(shares[0], Tensor):
            return torch.cat(shares)
        return tuple(torch.cat(parts) for parts in zip(*shares, strict=True))

    def _share(self, function: Any, place: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return one client's part of an operation's arguments."""
        number = len(self._rows)

        def share(name: str, value: Any) -> Any:
            if name == "size":  # of something new
                return [value[0] // number, *value[1:]]
            if isinstance(value, Tensor) and value.dim():
                if len(value) % number:
                    raise CannotVectorize("a random operation of several clients cannot be taken apart")
                size = len(value) // number
                return value[place * size : (place + 1) * size]
            return value

        named = zip(_arguments(function), args, strict=False)  # the last ones may be left out
        return [share(*argument) for argument in named], {name: share(name, value) for name, value in kwargs.items()}

    def _draw(self, row: int, function: _Draw, args: Any, kwargs: Any) -> Any:
        on_cpu = self._generators._device.type == "cpu"
        if on_cpu and "generator" in _arguments(function):
            return function(*args, **kwargs, generator=self._generators.cpu(row))
        with self._generators.active(row):
            return function(*args, **kwargs)


@cache
def _arguments(function: Any) -> list[str]:
    return [argument.name for argument in function._schema.arguments]


def _without_dropout(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether this is attention that drops nothing."""
    names = _arguments(function)
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    return not (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))


@contextmanager
def mapped_dirichlet() -> Iterator[None]:
    """Let Beta and Dirichlet distributions draw under ``vmap``, as long as no gradient is asked for.

    Torch draws by an ``autograd.Function``, which cannot be mapped.
    """

    def draw(concentration: Tensor) -> Tensor:
        if torch.is_grad_enabled() and concentration.requires_grad:
            raise CannotVectorize("a gradient of what Beta or Dirichlet distributions draw cannot be mapped")
        return torch._sample_dirichlet(concentration)

    function: Any = getattr(torch.distributions.dirichlet, "_Dirichlet", None)
    if function is None:
        yield
        return
    function.apply = draw
    try:
        yield
    finally:
        del function.apply


@contextmanager
def nothing_drawn(device: torch.device, torch_may_draw: bool = False) -> Iterator[None]:
    """Raise ``CannotVectorize`` if something is drawn from the global generators, and put them back.

    Args:
        device: Device of the module.
        torch_may_draw: Whether torch's generators may be drawn from; they are put back then, too.
    """
    before, seed = global_states(device), torch.initial_seed()
    try:
        yield
    finally:
        after, is_seeded = global_states(device), torch.initial_seed() != seed
        drawn_from = changed_generators(before, after)
        if drawn_from:
            set_global_states(before, device)
    if drawn_from - {"torch"}:
        raise CannotVectorize("`training_step` draws from numpy's or Python's generator, which all clients share")
    if is_seeded and not torch_may_draw:
        raise CannotVectorize("`training_step` seeds torch's generator (`torch.manual_seed`), which all clients share")
    if drawn_from and not torch_may_draw:
        raise CannotVectorize("`training_step` draws random numbers that only some clients would draw")
