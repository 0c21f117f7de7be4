"""On what a captured step depends beside its tensors.

Dynamo captures a step as it runs once, and guards whatever of Python it has looked at. Where the worked example
returned this instead, there would be one guard more::

    return loss * (2 if self.current_epoch > 3 else 1)     # guard: self.trainer.current_epoch == 0

When a guard no longer holds, the step is captured again. The objects that guards look at also tell what no stack can
do, and what changes from one step of a client to the next.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.types import GuardFilterEntry

from fl_lightning._lightning.stacks.watching import STEPS_SO_FAR, is_watched
from fl_lightning.executors.compiler.causes import readable

#: How Dynamo names the batch's index.
_INDEX = "batch_idx"
#: How it names the library's own question whether a step is captured.
_OF_LIBRARY = "is_captured_for_stack"
#: How it names a function that `functools.lru_cache` wraps.
_CACHED = ".__wrapped__"
#: Functions that tell a step whether it is captured.
_ASKING = (torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._dynamo.is_compiling)
#: How it names a module's parameters, buffers or submodules, and what holds them.
_OF_TENSORS = re.compile(r"(_parameters|_buffers|_modules)('\])?(\['\w+'\])?$")
_TORCH = str(Path(torch.__file__).parent)

#: By a name of its own, so that guards tell it from a question of the user's step.
is_captured_for_stack = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True)
class Dependence:
    """On what a captured step depends beside its tensors, as Dynamo guards it.

    Attributes:
        guards: What is looked at, and what of it.
        changes: Whether some of it changes from step to step: the batch's index, learning rates, or the steps so far.
        counts_steps: Whether it depends on the optimizer steps of all clients so far, which each client has its own of.
        refusal: Why the step cannot be stacked; ``None`` if it can.
    """

    guards: frozenset[tuple[str, str]] = frozenset()
    changes: bool = False
    counts_steps: bool = False
    refusal: str | None = None

    @classmethod
    def of(
        cls, guards: Sequence[GuardFilterEntry], changing: Collection[int], *, reads_gradients: bool = False
    ) -> Dependence:
        """Read Dynamo's guards.

        Args:
            guards: The guards.
            changing: Identities of objects that hold what changes from step to step.
            reads_gradients: Whether gradients are there, and may be read.
        """
        changes = False
        counts_steps = False
        refusal: str | None = None
        for guard in guards:
            value = guard.value if guard.has_value else None
            if _INDEX in guard.name or id(value) in changing:
                changes = True
            if STEPS_SO_FAR in guard.name:
                changes = True
                counts_steps = True
            if not (reads_gradients and _is_gradient(guard)):
                refusal = refusal or _refusal(guard, value)
        return cls(frozenset(map(_seen_by, guards)), changes, counts_steps, refusal)

    def mentions(self, attribute: str) -> bool:
        """Whether it depends on an attribute of this name, or on whether there is one.

        To set an attribute, torch asks whether it is a parameter, buffer or submodule: that does not count.
        """
        word = re.compile(rf"\b{re.escape(attribute)}\b")
        for name, of_it in self.guards:
            if not _OF_TENSORS.search(name) and (word.search(name) or word.search(of_it)):
                return True
        return False


def _refusal(guard: GuardFilterEntry, value: Any) -> str | None:
    """Return why a step that depends on this cannot be stacked; ``None`` if it can."""
    name = guard.name
    if any(value is asking for asking in _ASKING) and not _is_of_torch(guard):
        return "`training_step` asks whether it is compiled, and does something else if it is"
    if guard.guard_type == "CLASS_MATCH" and is_watched(value):
        return "`training_step` asks for the type of a metric object or of the trainer; use `isinstance`"
    if _is_gradient(guard):
        return "`training_step` reads gradients (`p.grad`), which a stack takes after it"
    # An optimizer's state is a dictionary with a default.
    if name.endswith(".state.default_factory"):
        return "`training_step` reads the optimizer's state, of which a stack has another"
    # Dynamo calls the function itself, and passes over its cache.
    if name.endswith(_CACHED):
        function = readable(name.removesuffix(_CACHED))
        if not function.startswith("torch."):
            return f"`training_step` calls `{function}`, whose results are kept in a cache"
    return None


def _is_gradient(guard: GuardFilterEntry) -> bool:
    """Whether a guard looks at a parameter's gradient; a closure of this name is that of ``torch.func.grad``."""
    return guard.name.endswith(".grad") and guard.guard_type != "CLOSURE_MATCH"


def _seen_by(guard: GuardFilterEntry) -> tuple[str, str]:
    """Return what a guard looks at, and what of it: of a dictionary, say, whether it has a certain key."""
    options: Any = ""
    if guard.guard_type != "TENSOR_MATCH":
        options = getattr(guard.orig_guard.create_fn, "keywords", {})
    # Dynamo counts its graphs in this name.
    name = re.sub(r"(__builtins_dict__)_\d+", r"\1", guard.name)
    return name, f"{guard.guard_type} {options}"


def _is_of_torch(guard: GuardFilterEntry) -> bool:
    """Whether PyTorch's own code, or the library's, has led to a guard."""
    if _OF_LIBRARY in guard.name:
        return True
    frames = guard.orig_guard.user_stack
    return frames is not None and len(frames) > 0 and frames[-1].filename.startswith(_TORCH)
