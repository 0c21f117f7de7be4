"""Attributes in which a step keeps something for later: outputs of its graph, handed over client by client.

While a step is captured, a list or a dictionary of the module that the step changes notes what it is given, as metric
objects do, and what an attribute was set to is noted afterwards::

    self.outputs.append(loss.detach())     # metric_call(0, "append", loss)
    self.features["first"] = hidden        # metric_call(1, "put", "first", hidden)
    self.last = scores                     # metric_call(2, "assign", scores)

After the stack the attributes get all that, in the order in which the clients alone would have kept it. Until then they
hold what they held before the stack, so a step that reads them is not captured. What it has put into a dictionary
itself it may read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Keeper
from fl_lightning.executors.compiler.causes import changes
from fl_lightning.executors.compiler.notes import metric_call

#: The name of the attribute at the end of what Dynamo calls it.
_LAST_NAME = re.compile(r"\.(\w+)$")
#: Attributes that every module has, which hold its tensors, submodules and hooks.
_OF_TORCH = frozenset(vars(nn.Module()))
_OF_WATCHED = "_own_of_step"


class WatchedContainers:
    """The lists and dictionaries of a module that its steps change.

    Args:
        module: The module.
        known: All objects that notes name by their numbers; those of this are added.
    """

    def __init__(self, module: nn.Module, known: list[Any]) -> None:
        self._module = module
        self._known = known
        self._numbers: dict[tuple[int, str], int] = {}
        self._watched: list[Keeper] = []
        #: What stands for tensors that the last captured step has put into dictionaries.
        self.put: list[Tensor] = []

    def watch(self, effects: Sequence[str]) -> bool:
        """Watch what a step changes, as Dynamo names it; return whether anything of it was not watched yet."""
        number = len(self._watched)
        names = {found[1] for found in map(_LAST_NAME.search, effects) if found is not None} - _OF_TORCH
        attributes = [(part, name, value) for part in self._module.modules() for name, value in vars(part).items()]
        changed = {id(value) for _, name, value in attributes if name in names and type(value) in _KINDS}
        # Another attribute may hold the same list.
        for part, name, value in attributes:
            if id(value) in changed:
                keeper = self._known[self.number(part, name)]
                if keeper not in self._watched:
                    self._watched.append(keeper)
        return len(self._watched) > number

    def number(self, part: nn.Module, name: str) -> int:
        """Return the number by which notes name an attribute."""
        key = id(part), name
        if key not in self._numbers:
            self._numbers[key] = len(self._known)
            self._known.append(Keeper(part, name))
        return self._numbers[key]

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Let the lists and dictionaries note what they are given."""
        before: list[tuple[Keeper, Any]] = []
        for keeper in self._watched:
            kind = _KINDS.get(type(keeper.value))
            if kind is not None:
                before.append((keeper, keeper.value))
                keeper.assign(kind(self.number(keeper.part, keeper.name), keeper.name))
        try:
            yield
        finally:
            self.put = []
            for keeper, value in before:
                self.put += [leaf for leaf in pytree.tree_leaves(keeper.value._own_of_step) if isinstance(leaf, Tensor)]
                keeper.assign(value)

    def note_assignment(
        self, graph: fx.Graph, part: nn.Module, name: str, value: Any, nodes: Mapping[int, fx.Node]
    ) -> None:
        """Add a note of what an attribute was set to.

        Args:
            graph: The captured graph.
            part: The module.
            name: The attribute's name.
            value: What the captured step has set it to.
            nodes: The nodes of inputs and outputs, by the identities of what stands for them.

        Raises:
            CannotVectorize: If that is not made of tensors that the graph computes. Others may be numbers or texts that
                change from step to step, of which Dynamo guards none that it only hands on.
        """
        leaves, spec = pytree.tree_flatten(value)
        if not leaves or not all(isinstance(leaf, Tensor) and id(leaf) in nodes for leaf in leaves):
            raise CannotVectorize(changes([f"self.{name}"]))
        noted = pytree.tree_unflatten([nodes[id(leaf)] for leaf in leaves], spec)
        with graph.inserting_before(graph.output_node()):
            graph.call_function(metric_call, (str(self.number(part, name)), "assign", noted))


def is_of_watched(effect: str) -> bool:
    """Whether a step has changed nothing but what a watched dictionary holds of it, as Dynamo names it."""
    return _OF_WATCHED in effect


class _Watched:
    """Stands for a list or a dictionary while a step is captured."""

    def __init__(self, number: int, name: str) -> None:
        # Dynamo keeps a string as it is; a number that has changed would become an input of the graph.
        self._number = str(number)
        self._name = name
        self._own_of_step: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> None:
        _refuse(self)

    def __len__(self) -> int:
        _refuse(self)
        return 0

    def __bool__(self) -> bool:
        _refuse(self)
        return False

    def __iter__(self) -> Any:
        _refuse(self)

    def __contains__(self, key: Any) -> bool:
        _refuse(self)
        return False

    def __getitem__(self, key: Any) -> Any:
        _refuse(self)

    def __eq__(self, other: object) -> bool:
        _refuse(self)
        return False

    def __add__(self, other: Any) -> Any:
        _refuse(self)

    def __iadd__(self, other: Any) -> Any:
        _refuse(self)


class _WatchedList(_Watched):
    """Notes what is appended."""

    def append(self, value: Any) -> None:
        """Note a value."""
        metric_call(self._number, "append", value)


class _WatchedDict(_Watched):
    """Notes what is put under which key, and shows it again in the same step."""

    def __setitem__(self, key: Any, value: Any) -> None:
        metric_call(self._number, "put", key, value)
        self._own_of_step[key] = value

    def __getitem__(self, key: Any) -> Any:
        if key not in self._own_of_step:
            _refuse(self)
        return self._own_of_step[key]


_KINDS: dict[type, type[_Watched]] = {list: _WatchedList, dict: _WatchedDict}


def _refuse(watched: _Watched) -> None:
    torch._dynamo.graph_break(
        msg=f"`training_step` reads `self.{watched._name}`, which in a stack does not yet hold what clients keep"
    )
