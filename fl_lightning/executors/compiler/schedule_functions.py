"""Functions of learning-rate schedules that users give, called once for all clients of a stack.

The clients of a round walk the same stretch of a schedule, so a function of the step alone returns the same for each::

    LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.warmup))

Whether it is one, PyTorch's Dynamo finds out as it does for a training step: it reads the function for the step that
comes, guards what it depends on, and names what it would change. A function that reads tensors or counts of steps,
draws random numbers or changes anything is refused. The rate is what the function itself returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import config
from torch._dynamo.types import GuardFilterEntry
from torch.optim.lr_scheduler import LambdaLR, MultiplicativeLR

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning._lightning.stacks.watching import WatchedTrainer
from fl_lightning.executors.compiler.causes import cause_of, effects_of
from fl_lightning.executors.compiler.dependence import Dependence
from fl_lightning.executors.compiler.nodes import inputs_of
from fl_lightning.executors.compiler.unmapped import functions_for_capture

_OPTIONS: dict[str, Any] = {
    "side_effect_replay_policy": "error",
    "use_numpy_random_stream": True,
    "allow_unspec_int_on_nn_module": True,
    "recompile_limit": 24,
}

_probe_numbers = count()


class ScheduleFunctions:
    """Looks at the functions of a fit's schedules whenever they are called.

    Args:
        stacked: The module's loop.
        kept: Returns the names of attributes in which steps keep something.
    """

    def __init__(self, stacked: StackedLoop, kept: Callable[[], Collection[str]]) -> None:
        self._stacked = stacked
        self._kept = kept
        self._trainer = WatchedTrainer(stacked.trainer)
        #: By the identity of a function: the function, and what Dynamo captures of it.
        self._probes: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._refusal: str | None = None

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Look at each function that a schedule calls.

        Raises:
            CannotVectorize: If one is no function of the step alone.
        """
        before: list[tuple[Any, list[Any]]] = []
        for schedule in self._stacked.schedules_by_step():
            if isinstance(schedule, (LambdaLR, MultiplicativeLR)):
                before.append((schedule, schedule.lr_lambdas))
                schedule.lr_lambdas = [partial(self._call, function) for function in schedule.lr_lambdas]
        try:
            yield
        finally:
            for schedule, functions in before:
                schedule.lr_lambdas = functions

    def _call(self, function: Any, step: int) -> Any:
        if id(function) not in self._probes:
            self._probes[id(function)] = function, self._compile()
        _, probe = self._probes[id(function)]
        self._refusal = None
        try:
            with (
                self._trainer.watched(0),
                functions_for_capture(),
                config.patch(**_OPTIONS),
                torch.compiler.config.patch(dynamic_sources=r"L\['step'\]"),  # type: ignore[attr-defined]
            ):
                probe(torch.zeros(()), function, step)
        except Exception as error:
            cause = cause_of(error).replace("`training_step`", "the function of a learning-rate schedule")
            if effects_of(error):
                cause = "the function of a learning-rate schedule changes something whenever it is called"
            raise CannotVectorize(cause) from error
        if self._refusal is not None:
            raise CannotVectorize(self._refusal)
        return function(step)

    def _compile(self) -> Callable[..., Any]:
        code = _probe.__code__.replace(co_name=f"probe_{next(_probe_numbers)}")
        options: Any = {"guard_filter_fn": self._note_guards}
        compiled: Callable[..., Any] = torch.compile(
            FunctionType(code, _probe.__globals__), backend=self._backend, fullgraph=True, options=options
        )
        return compiled

    def _backend(self, module: fx.GraphModule, inputs: Any, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
        """Return what Dynamo calls in the place of a graph, which computes nothing."""
        if any("random_value" in str(node.target) for node in inputs_of(module.graph)):
            self._refusal = "the function of a learning-rate schedule draws random numbers"
        outputs: Any = module.graph.output_node().args[0]
        return lambda *given: tuple(torch.zeros(()) for _ in outputs)

    def _note_guards(self, guards: Sequence[GuardFilterEntry]) -> list[bool]:
        """Note why a function that depends on this is refused; all guards stay."""
        dependence = Dependence.of(guards, ())
        reads_steps = any(map(dependence.mentions, self._kept()))
        for guard in guards:
            # `given` is the library's own tensor.
            if guard.has_value and isinstance(guard.value, Tensor) and "given" not in guard.name:
                reads_steps = True
        if dependence.counts_steps:
            self._refusal = "the function of a learning-rate schedule reads `global_step`; it is given the step"
        elif reads_steps:
            self._refusal = "the function of a learning-rate schedule reads what the steps of a client change"
        return [True] * len(guards)


def _probe(given: Tensor, function: Any, step: int) -> Tensor:
    """The function that is compiled."""
    rate: Tensor = given + function(step)
    return rate
