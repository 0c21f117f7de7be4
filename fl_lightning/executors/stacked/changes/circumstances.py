"""The circumstances of a trial; when they change, the trial is repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from fl_lightning._lightning.unmodified_classes import steps_of_their_own
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.changes.module_state import ModuleState, described

_SETTINGS = "a callback, a hook, what is trained, or a setting of the trainer"


class Circumstances:
    """What a module, its optimizer and the trainer look like at a round's start.

    Looked at are attributes of any kind, globals and classes that the module's methods see, hooks, modes, frozen
    parameters, the optimizer's options and the trainer's settings; of tensors with many values only the shape.

    Args:
        training: Trains clients.
        of_client: Whether a client has just begun or ended: of large tensors samples are taken, and the optimizer's
            options, which every client has of its own, do not count.
    """

    def __init__(self, training: LocalTraining, *, of_client: bool = False) -> None:
        trainer: Any = training.trainer
        seen: list[Any] = [*trainer.callbacks, trainer.accumulate_grad_batches, trainer.gradient_clip_val]
        seen += steps_of_their_own(trainer)
        for parameter in training.vector.parameters:
            seen.append(parameter.requires_grad)
            seen += (parameter._backward_hooks or {}).values()
            seen += (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
        for optimizer in trainer.optimizers:
            seen += type(optimizer), optimizer.step
            seen += [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
            for group in optimizer.param_groups:
                if of_client:
                    seen += map(id, group["params"])
                    continue
                # in the order of names: a resumed optimizer has another one
                options = (group[name] for name in sorted(group))
                seen += [bool(value) if isinstance(value, (int, float)) else None for value in options]
        self._seen = seen  # holds the objects, so that another one cannot come to lie where one was
        if of_client:
            seen += *trainer.optimizers, trainer.gradient_clip_algorithm
            seen += (config.scheduler for config in trainer.lr_scheduler_configs)
        self._module = ModuleState(training.vector, brief=True, samples=of_client)

    def difference(self, other: Circumstances) -> str | None:
        """Return the name of something that has changed, ``None`` if nothing has."""
        mine, others = self._seen, other._seen
        if len(mine) != len(others) or not all(a is b or a == b for a, b in zip(mine, others, strict=True)):
            return _SETTINGS
        return self._module.difference(other._module)

    def changed_since(self, fingerprints: Mapping[str, str]) -> str | None:
        """Return the name of something that an earlier fit found otherwise; ``None`` if there is nothing."""
        if not fingerprints:
            return None
        own = self.fingerprints
        names = [*sorted(own.keys() ^ fingerprints.keys()), *own]
        changed = [name for name in names if own.get(name) != fingerprints.get(name)]
        # what else has changed may be numbered otherwise alone
        return next((name for name in changed if name.startswith("`self.")), next(iter(changed), None))

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Texts by name that another process with the same module and settings finds, too.

        An attribute of the module has one of its own, and so has a layer with all that is in it.
        """
        grouped: dict[str, list[Any]] = {_SETTINGS: [self._seen]}
        for name, snapshot in self._module.snapshots.items():
            grouped.setdefault(f"`{'.'.join(name.split('.')[:2])}`", []).append((name, snapshot))
        return {
            name: hashlib.sha256(described(snapshots).encode()).hexdigest()[:16] for name, snapshots in grouped.items()
        }
