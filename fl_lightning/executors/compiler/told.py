"""What a step tells others: calls of ``print`` and of loggers, made client by client after the stack.

While a step is captured, they note what they are given, as metric objects do. A text that Python would make of values
is noted with its values, and made when it is told::

    print(f"batch {batch_idx}: {loss:.3f}")     # metric_call(0, "tell", "print", Text("batch {}: {:.3f}", ...))
    self.logger.experiment.add_scalar("loss", loss, batch_idx)    # metric_call(2, "tell", "experiment.add_scalar", ...)

A step may call methods of a logger. One that reads anything else of it, or uses what a method returns, is not captured.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn, Protocol

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.lists import SizeVariable
from torch._dynamo.variables.misc import StringFormatVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.recording import Listener, Text, with_texts
from fl_lightning._lightning.stacks.watching import watched_class
from fl_lightning.executors.compiler.dependence import is_captured_for_stack
from fl_lightning.executors.compiler.notes import metric_call

#: Takes what a listener is told: the listener's number, the method, its arguments, and those by name.
Take = Callable[[str, str, tuple[Any, ...], dict[str, Any]], None]
#: What a step tells a listener.
ToldCalls = list[tuple[str, Any]]

_usual_print = builtins.print


class Listeners:
    """All that the steps of a module may tell something: ``print``, ``self.print`` and the trainer's loggers.

    Args:
        module: The module.
        trainer: Its trainer.
        known: All objects that notes name by their numbers; those of this are added.
    """

    def __init__(self, module: pl.LightningModule, trainer: pl.Trainer, known: list[Any]) -> None:
        self._module = module
        self._trainer = trainer
        self._first = len(known)
        known += [Listener(builtins), Listener(module), *map(Listener, trainer.loggers)]
        self._when_captured = self._stand_ins(_note)
        #: Whether a text of a number was noted with the number.
        self.has_kept_numbers = False

    def _stand_ins(self, take: Take) -> tuple[Callable[..., Any], Callable[..., Any], list[Any]]:
        """Return what stands for ``print``, for ``self.print`` and for the loggers."""
        # Dynamo keeps a string as it is; a number that has changed would become an input of the graph.
        python, module, *loggers = [str(self._first + place) for place in range(2 + len(self._trainer.loggers))]

        def tell_python(*args: Any, **kwargs: Any) -> None:
            take(python, "print", args, kwargs)

        def tell_module(*args: Any, **kwargs: Any) -> None:
            take(module, "print", args, kwargs)

        found = []
        for logger, number in zip(self._trainer.loggers, loggers, strict=True):
            kind: Any = _watched_logger(type(logger))
            stand_in = object.__new__(kind)
            vars(stand_in).update(_take_told=take, _number_in_step=number)
            found.append(stand_in)
        return tell_python, tell_module, found

    @contextmanager
    def noting(self, *, keeps_numbers: bool) -> Iterator[None]:
        """Let a step that is captured note what it tells.

        Args:
            keeps_numbers: Whether a text keeps the numbers that it is made of; otherwise it is made for each number.
        """
        usual = InstructionTranslatorBase._format_value
        usual_proxy = StringFormatVariable.as_proxy
        self.has_kept_numbers = False

        def format_value(translator: InstructionTranslatorBase, form: Any, flags: int) -> None:
            if not isinstance(translator.stack[-1], SymNodeVariable):
                usual(translator, form, flags)
                return
            self.has_kept_numbers = True
            field = "{:" + form.as_python_constant() + "}"
            translator.push(StringFormatVariable(field, [translator.pop()], {}))

        if keeps_numbers:
            InstructionTranslatorBase._format_value = format_value  # type: ignore[method-assign, assignment]
        StringFormatVariable.as_proxy = _text  # type: ignore[method-assign, assignment]
        try:
            with self._replaced(*self._when_captured):
                yield
        finally:
            InstructionTranslatorBase._format_value = usual  # type: ignore[method-assign]
            StringFormatVariable.as_proxy = usual_proxy  # type: ignore[method-assign]

    @contextmanager
    def recording(self) -> Iterator[ToldCalls]:
        """Record what a step tells that runs as it is; nobody hears it."""
        calls: ToldCalls = []

        def take(number: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # The step may go on to write to tensors.
            shown = with_texts((_shown(path, args), kwargs))
            given = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), shown)
            calls.append((path, given))

        with self._replaced(*self._stand_ins(take)):
            yield calls

    @contextmanager
    def _replaced(self, python: Callable[..., Any], module: Callable[..., Any], loggers: list[Any]) -> Iterator[None]:
        attributes = vars(self._module)
        is_own = type(self._module).print is not pl.LightningModule.print or "print" in attributes
        present = self._trainer.loggers
        builtins.print = python
        self._trainer.loggers = loggers
        if not is_own:
            attributes["print"] = module
        try:
            yield
        finally:
            builtins.print = _usual_print
            self._trainer.loggers = present
            if not is_own:
                del attributes["print"]


def _note(number: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note what a step that is captured tells; PyTorch itself may print meanwhile."""
    if is_captured_for_stack():
        metric_call(number, "tell", path, *_shown(path, args), **kwargs)
    else:
        _usual_print(*args, **kwargs)


def _shown(path: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is printed with shapes as texts, since a graph holds plain tuples."""
    if path != "print":
        return args
    return tuple([_text_of_size(each) if isinstance(each, torch.Size) else each for each in args])


def _text_of_size(size: Any) -> Text:
    return Text("torch.Size({})", (list(size),), {})


def _text(variable: StringFormatVariable) -> Text:
    """Return what stands in a graph for a text that is made of values."""
    args = tuple(map(_value_in_text, variable.sym_args))
    return Text(
        variable.format_string, args, {name: _value_in_text(each) for name, each in variable.sym_kwargs.items()}
    )


def _value_in_text(variable: Any) -> Any:
    value = variable.as_proxy()
    return _text_of_size(value) if isinstance(variable, SizeVariable) else value


# ---- loggers ----


class Unread:
    """Stands for something of which a step may read nothing.

    Args:
        path: What it is.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __bool__(self) -> bool:
        _refuse(self._path)

    def __len__(self) -> int:
        _refuse(self._path)

    def __iter__(self) -> Any:
        _refuse(self._path)

    def __getitem__(self, key: Any) -> Any:
        _refuse(self._path)

    def __contains__(self, key: Any) -> bool:
        _refuse(self._path)

    def __eq__(self, other: object) -> bool:
        _refuse(self._path)

    __hash__ = object.__hash__

    def __str__(self) -> str:
        _refuse(self._path)

    def __getattr__(self, name: str) -> Unread:
        # PyTorch asks one that is not yet made.
        if name.startswith("_"):
            raise AttributeError(name)
        return self._attribute(name)

    def _attribute(self, name: str) -> Unread:
        _refuse(f"{self._path}.{name}")


class _Attribute(Unread):
    """Stands for an attribute of a logger, whose methods may be called."""

    def __init__(self, take: Take, number: str, method: str) -> None:
        super().__init__(f"logger.{method}")
        self._take = take
        self._number = number
        self._method = method

    def _attribute(self, name: str) -> Unread:
        return _Attribute(self._take, self._number, f"{self._method}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Unread:
        self._take(self._number, self._method, args, kwargs)
        return Unread(f"{self._path}(...)")


def _refuse(path: str) -> NoReturn:
    cause = f"`training_step` reads `{path}`, which a stack does not have"
    torch._dynamo.graph_break(msg=cause)
    raise CannotVectorize(cause)


@cache
def _watched_logger(kind: Any) -> type:
    return watched_class(kind, _read_logger, {})


class _Watched(Protocol):
    """A watched logger: what takes its calls, and its number."""

    _take_told: Take
    _number_in_step: str


def _read_logger(self: _Watched, name: str) -> Any:
    return _Attribute(self._take_told, self._number_in_step, name)
