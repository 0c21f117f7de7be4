"""On what a captured step depends beside its tensors.

Dynamo captures a step as it runs once, and guards whatever of Python it has looked at::

    return loss * (2 if self.current_epoch > 3 else 1)     # guard: self.trainer.current_epoch == 0

When a guard no longer holds, the step is captured again. What changes from step to step is told by the objects that a
guard looks at, and so is what no stack can do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fl_lightning._lightning.stacks.watching import is_watched

_INDEX = "batch_idx"  # in the names of guards
_OF_LIBRARY = "_is_captured"  # the question of the library itself, in the names of guards
#: Functions that tell a step whether it is captured.
_ASKING = (torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._dynamo.is_compiling)


@dataclass(frozen=True)
class Dependence:
    """On what a captured step depends beside its tensors, as Dynamo guards it.

    Attributes:
        guards: What is looked at, and what of it.
        changes: Whether some of it changes from step to step: the batch's index, or learning rates.
        refusal: Why the step cannot be stacked; ``None`` if it can.
    """

    guards: frozenset[tuple[str, str]] = frozenset()
    changes: bool = False
    refusal: str | None = None

    @classmethod
    def of(cls, guards: Sequence[Any], changing: Collection[int]) -> Dependence:
        """Read Dynamo's guards.

        Args:
            guards: The guards.
            changing: Identities of objects that hold what changes from step to step.
        """
        refusal = None
        changes = False
        for guard in guards:
            value = guard.value if guard.has_value else None
            changes = changes or _INDEX in guard.name or id(value) in changing
            if any(value is asking for asking in _ASKING) and not _is_of_torch(guard):
                refusal = "`training_step` asks whether it is compiled, and does something else if it is"
            if guard.guard_type == "CLASS_MATCH" and is_watched(value):
                refusal = "`training_step` asks for the type of a metric object or of the trainer; use `isinstance`"
        return cls(frozenset(map(_seen_by, guards)), changes, refusal)


def _seen_by(guard: Any) -> tuple[str, str]:
    """Return what a guard looks at, and what of it: of a dictionary, say, whether it has a certain key."""
    options = getattr(guard.orig_guard.create_fn, "keywords", {}) if guard.guard_type != "TENSOR_MATCH" else ""
    return re.sub(r"(__builtins_dict__)_\d+", r"\1", guard.name), f"{guard.guard_type} {options}"  # counted by graphs


def _is_of_torch(guard: Any) -> bool:
    """Whether PyTorch's own code, or the library's, has led to a guard."""
    if _OF_LIBRARY in guard.name:
        return True
    frames = guard.orig_guard.user_stack
    return bool(frames) and frames[-1].filename.startswith(str(Path(torch.__file__).parent))
