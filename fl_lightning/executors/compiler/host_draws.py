"""Random numbers of numpy and of Python as inputs of a step's graph, drawn client by client before the step.

Each client has generators of its own, as for torch's draws. While a step is captured, a draw notes its arguments, and
the note becomes an input::

    mix = np.random.beta(0.4, 0.4)
    mix = host_draw("numpy.random", "beta", (0.4, 0.4), {}).item()      # as it is captured
    mix = drawn.item()      # drawn: the input Place("drawn", HostDraw("numpy.random", "beta", (0.4, 0.4), ()))

The arguments must be the same for all clients.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import has_static_value

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.dependence import is_captured_for_stack

#: The functions that may draw, by the names of their modules.
_FUNCTIONS = {
    "numpy.random": (
        *("beta", "binomial", "choice", "dirichlet", "exponential", "gamma", "normal", "permutation", "poisson"),
        *("rand", "randint", "randn", "random", "random_sample", "standard_normal", "uniform"),
    ),
    "random": ("betavariate", "gauss", "randint", "random", "randrange", "uniform"),
}

_COMPUTED = "`training_step` draws by numpy or by Python's `random` with arguments that it computes from tensors"


class HostDraw(NamedTuple):
    """A draw of a module of Python.

    Attributes:
        module: The module's name.
        function: The function's name.
        args: Its arguments.
        kwargs: Its arguments by name, as pairs.
    """

    module: str
    function: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def draw(self) -> Tensor:
        """Draw from the global generators."""
        function: Callable[..., Any] = _USUAL[self.module][self.function]
        # A number of Python has double precision.
        return torch.as_tensor(np.asarray(function(*self.args, **dict(self.kwargs))))


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def host_draw(module: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Stand for a draw, and return zeros in its place."""
    shape, dtype = _form(module, function, args, kwargs)
    return torch.zeros(shape, dtype=dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_number(module: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    shape, _ = _form(module, function, args, kwargs)
    return not shape


def _form(module: str, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, torch.dtype]:
    """Return the shape and the type of what is drawn; the generators stay as they are."""
    states = random.getstate(), np.random.get_state()
    try:
        drawn = np.asarray(_USUAL[module][function](*args, **kwargs))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return drawn.shape, torch.float64 if drawn.dtype.kind == "f" else torch.int64


@contextmanager
def host_draws_noted() -> Iterator[None]:
    """Let draws of numpy and of Python note what they are given while a step is captured."""
    for module, functions in _NOTING.items():
        for name, function in functions.items():
            setattr(importlib.import_module(module), name, function)
    try:
        yield
    finally:
        for module, functions in _USUAL.items():
            for name, function in functions.items():
                setattr(importlib.import_module(module), name, function)


def draw_of(node: fx.Node) -> HostDraw:
    """Return the draw that a node notes.

    Raises:
        CannotVectorize: If it depends on what the step computes.
    """
    if node.all_input_nodes:
        raise CannotVectorize(_COMPUTED)
    module: Any
    function: Any
    args: Any
    kwargs: Any
    module, function, args, kwargs = node.args
    return HostDraw(module, function, tuple(args), tuple(dict(kwargs).items()))


def _noting(module: str, function: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        # PyTorch draws, too.
        if not is_captured_for_stack():
            return usual(*args, **kwargs)
        args = tuple([_known(each) for each in args])
        kwargs = {name: _known(each) for name, each in kwargs.items()}
        for each in (*args, *kwargs.values()):
            if isinstance(each, (int, float)) and not has_static_value(each):
                torch._dynamo.graph_break(msg=_COMPUTED)
        drawn = host_draw(module, function, args, kwargs)
        return drawn.item() if _is_number(module, function, args, kwargs) else drawn.numpy()

    return draw


def _known(value: Any) -> Any:
    """Return an argument; the number of samples of shorter batches becomes a constant, also in a shape."""
    if isinstance(value, (tuple, list)):
        return tuple([_known(each) for each in value])
    return len([0] * value) if type(value) is int and value > 0 else value


_USUAL: dict[str, dict[str, Any]] = {}
_NOTING: dict[str, dict[str, Any]] = {}
for _module, _names in _FUNCTIONS.items():
    _USUAL[_module] = {name: getattr(importlib.import_module(_module), name) for name in _names}
    _NOTING[_module] = {name: _noting(_module, name, function) for name, function in _USUAL[_module].items()}
