"""Optimizers and learning-rate schedules of a round: every client starts from the same settings.

Clients train one after the other with the one optimizer that the module has. So before each client the optimizer is put
back to what it was when ``configure_optimizers`` had made it. In a round with three clients and SGD with momentum::

    start_from_kept             the learning rate is 0.1
    start_from_present          a hook has set 0.05: all clients of this round begin with it
    reset, client 4 trains      its momentum grows from 0, and a schedule by steps lowers its rate
    reset, client 0 trains      momentum is 0 and the rate 0.05 again
    reset, client 7 trains
    reset, advance_schedules    the schedule by steps walks once what it walked for a client of the mean length

If clients keep what their optimizers hold, each goes on with its own after the reset; see :class:`OptimizerLayout`.

A schedule by epochs steps once a round. If the module optimises manually it steps its schedules itself; then the round
ends with the settings that its first client left.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.trainer import call
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_leaves

from fl_lightning._lightning.contents import same_content
from fl_lightning._lightning.loops.optimizer_layout import OptimizerLayout
from fl_lightning.parts.messages import OptimizerState

#: The options of each optimizer's groups, without their parameters.
Options = list[list[dict[str, Any]]]
#: The options of the optimizers, and the states of the schedules.
Settings = tuple[Options, list[dict[str, Any]]]
#: What every optimizer has besides its state and groups; learning-rate schedules wrap `step` and set `_opt_called`.
_COMMON = {*vars(SGD([torch.zeros(1)])), "step", "_opt_called", "_warned_capturable_if_run_uncaptured"}
_COMMON -= {"state", "param_groups"}


def unscale_before_hooks(optimizers: Sequence[Optimizer]) -> None:
    """Let a gradient scaler unscale before hooks change gradients: fused optimizers would do so in their steps."""
    for optimizer in optimizers:
        # Lightning and the scaler ask this attribute.
        vars(optimizer)["_step_supports_amp_scaling"] = False


def is_step_skipped(trainer: pl.Trainer, optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has found infinite gradients, so that it skips the step for which hooks run."""
    scaler: GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    return scaler is not None and any(bool(found) for found in scaler._found_inf_per_device(optimizer).values())


def unscale(trainer: pl.Trainer, optimizer: Optimizer) -> bool:
    """Divide gradients that no step follows by a gradient scaler's scale.

    Returns:
        Whether they are finite. If not, the scale falls, as it does after a step that was skipped.
    """
    scaler: GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None:
        return True
    scaler.unscale_(optimizer)
    if is_step_skipped(trainer, optimizer):
        scaler.update()
        return False
    # the scaler unscales once between two steps, unless it forgets that it has
    del scaler._per_optimizer_states[id(optimizer)]
    return True


def maximized(optimizers: Iterable[Optimizer]) -> set[int]:
    """Return the ids of the parameters whose optimizers maximise the loss (``maximize=True``)."""
    ids: set[int] = set()
    for group in _groups(optimizers):
        if group.get("maximize"):
            ids.update(id(parameter) for parameter in group["params"])
    return ids


def maximizes(optimizers: Iterable[Optimizer]) -> bool | None:
    """Return whether the module's loss is maximised, so that clients minimise its negative; None if it is both."""
    asked = {bool(group.get("maximize")) for group in _groups(optimizers)}
    return None if len(asked) > 1 else True in asked


def _groups(optimizers: Iterable[Optimizer]) -> Iterator[dict[str, Any]]:
    for optimizer in optimizers:
        yield from optimizer.param_groups


class LocalOptimizers:
    """Gives each client fresh optimizers and the learning rates of the round's start.

    A schedule by steps walks the same stretch for every client: the steps of ``batches_per_client()`` batches.

    Args:
        trainer: The trainer, with optimizers and schedules set up.
        batches_per_client: Returns the mean number of a client's batches. It is asked in every round, because hooks may
            have changed the batch size, or how many batches are accumulated.
    """

    def __init__(self, trainer: pl.Trainer, batches_per_client: Callable[[], int]) -> None:
        self._trainer = trainer
        self._batches_per_client = batches_per_client
        #: Mean number of a client's batches in the round.
        self._mean_batches = 0
        self._automatic = trainer.lightning_module.automatic_optimization
        by_step = [config for config in trainer.lr_scheduler_configs if config.interval == "step"]
        #: Schedules that step after a client's optimizer steps; a module that optimises manually steps its own.
        self.by_step = by_step if self._automatic else []
        self._remember()
        #: Settings of earlier rounds, on whose models clients still train.
        self.past: dict[int, Settings] = {}
        #: Whether the client at work goes on with what its optimizers held before.
        self._goes_on = False
        #: With manual optimisation, the slot of the round's first client, and the settings that it left.
        self.first_client_end: tuple[int, Settings] | None = None

    # ---- the boundary between two rounds ----

    def keep(self) -> None:
        """Make the present optimizers and schedules the boundary's; see :class:`~fl_lightning.parts.kept.Kept`."""
        optimizers = self._trainer.optimizers
        self._kept_memories = [_Memory(optimizer) for optimizer in optimizers]
        self._kept_settings = self._settings()
        self._kept_states = [_copied_state(optimizer) for optimizer in optimizers]

    def put_back(self) -> None:
        """Return to the boundary's optimizers and schedules, also where schedules have stepped."""
        for memory in self._kept_memories:
            memory.put_back()
        self._clear_gradients()
        _, schedules = self._kept_settings
        self._set_schedules(schedules)

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's optimizers and schedules as Lightning saves them."""
        all_options, schedules = self._kept_settings
        saved = []
        for optimizer, options, state in zip(self._trainer.optimizers, all_options, self._kept_states, strict=True):
            present = optimizer.state_dict()
            groups: list[dict[str, Any]] = []
            # A hook of the round's start may have appended groups.
            for group, values in zip(present["param_groups"], options, strict=False):
                groups.append({**_options(values), "params": group["params"]})
            saved.append({**present, "state": state, "param_groups": groups})
        return {"optimizer_states": saved, "lr_schedulers": schedules}

    # ---- a round ----

    def start_from_kept(self) -> None:
        """Note the settings from which clients start, unless hooks of the round's start set others."""
        self._for_clients = self._kept_settings
        self.first_client_end = None

    def start_from_present(self) -> None:
        """Note the settings from which every client starts, with what hooks have set at the round's start."""
        self._for_clients = self._settings()
        self._remember()
        if self.by_step:
            self._mean_batches = self._batches_per_client()

    def _remember(self) -> None:
        """Note what optimizers hold before clients train."""
        optimizers = self._trainer.optimizers
        self._configured = [_Memory(optimizer) for optimizer in optimizers]
        self._parameters = list(self._trainer.lightning_module.parameters())
        states: list[dict[str, Any]] = []
        for optimizer in optimizers:
            states += optimizer.state.values()
        #: Whether ``configure_optimizers``, or a hook, has given optimizers a state; Adagrad's begins at step 0.
        self.begin_with_state = any(state.get("step", 1) for state in states)

    def options_of(self, round_index: int) -> Options:
        """Return the options with which a round's clients begin, of each optimizer's groups."""
        options, _ = self.past.get(round_index, self._for_clients)
        return options

    def take_options(self, options: Options) -> None:
        """Let clients begin with other options from the next round on; groups keep those that are not named."""
        for optimizer, groups in zip(self._trainer.optimizers, options, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)

    def keep_settings(self, round_index: int, under_way: Collection[int]) -> dict[int, Settings]:
        """Keep the settings of this round's clients for those that train later, and return all that are kept.

        Args:
            round_index: This round.
            under_way: Earlier rounds whose clients have not all been trained; the others are forgotten.
        """
        self.past = {number: settings for number, settings in self.past.items() if number in under_way}
        self.past[round_index] = self._for_clients
        return self.past

    def reset(self, round_index: int | None = None) -> None:
        """Clear gradients, and return to the configured state and the settings of a round, by default this one's."""
        for configured in self._configured:
            configured.put_back()
        self._clear_gradients()
        present = self._for_clients
        self._began_with = present if round_index is None else self.past.get(round_index, present)
        self._restore(*self._began_with)
        self._goes_on = False

    # ---- what a client keeps ----

    @property
    def client_steps_schedules(self) -> bool:
        """Whether schedules step as clients train, so that a client may have options and schedules of its own."""
        return bool(self.by_step) or (not self._automatic and bool(self._trainer.lr_scheduler_configs))

    @cached_property
    def _layout(self) -> OptimizerLayout:
        for optimizer in self._trainer.optimizers:
            if len(_with_wrapped(optimizer)) > 1:
                raise ValueError(
                    '`optimizer_state="kept"` needs optimizers that wrap no others, got '
                    f'{type(optimizer).__name__}. Give `optimizer_state="fresh"`, or the inner one.'
                )
        if self.by_step and len(self.by_step) < len(self._trainer.lr_scheduler_configs):
            raise ValueError(
                '`optimizer_state="kept"` needs schedules of one interval, since those by step count a client\'s own '
                'steps, and those by epoch all rounds. Give all of them interval="step", or all interval="epoch".'
            )
        return OptimizerLayout(self._trainer.optimizers, self._settings_of_client())

    def _settings_of_client(self) -> Settings | None:
        """Return the settings that belong to the client at work; ``None`` if the round's hold for all."""
        return self._settings() if self.client_steps_schedules else None

    def first_state(self) -> OptimizerState:
        """Return what a client's optimizers hold before its first step, at the present settings.

        Raises:
            ValueError: If a client could not keep what its optimizers hold.
        """
        return self._layout.empty(self._settings_of_client())

    def go_on(self, held: OptimizerState) -> None:
        """Let the client at work go on with what its optimizers held at the end of its last round."""
        settings = self._layout.write(held)
        if settings is not None:
            self._restore(*settings)
        self._goes_on = True

    def _clear_gradients(self) -> None:
        """Remove all gradients. An optimizer's ``zero_grad`` may be the user's own."""
        for parameter in self._parameters:
            parameter.grad = None

    @contextmanager
    def as_for_clients(self) -> Iterator[None]:
        """Make the optimizers fresh, with the settings of the round's clients; put the earlier ones back at the end."""
        before = self._settings()
        self.reset()
        try:
            yield
        finally:
            self.reset()
            self._restore(*before)

    def end_client(self, slot: int) -> OptimizerState | None:
        """Return what the client's optimizers hold, if it keeps that, and free its gradients and states.

        These are as large as models. The next client begins by a reset, which would drop them anyway.

        If the module steps schedules itself, the settings are kept that the round's first client left. A client that
        began with an earlier round's settings does not count: they would lead back to that round.
        """
        held = self._layout.read(self._settings_of_client()) if self._goes_on else None
        _, schedules = self._for_clients
        if schedules and not self._automatic:
            known = self.first_client_end
            is_first = known is None or slot < known[0]
            if is_first and same_content(self._began_with, self._for_clients):
                self.first_client_end = slot, self._settings()
        for optimizer in self._trainer.optimizers:
            optimizer.state.clear()
        self._clear_gradients()
        return held

    @property
    def _schedule_steps(self) -> int:
        """How far a schedule by steps advances in the round, and for a client at most."""
        return math.ceil(self._mean_batches / int(self._trainer.accumulate_grad_batches))

    def step_in_client(self, step: int, batches: int) -> None:
        """Step the schedules by steps after a client's optimizer step.

        A client that keeps its schedules goes as far as its steps do; others share the stretch of the round.

        Args:
            step: The step's number, from 1; the place of one is counted where its batch is None.
            batches: Batches that the client has trained on, of which Lightning counts every ``frequency``-th.
        """
        if self._goes_on or step <= self._schedule_steps:
            for config in self.by_step:
                if batches % config.frequency == 0:
                    call._call_lightning_module_hook(self._trainer, "lr_scheduler_step", config.scheduler, None)

    def advance_schedules(self) -> None:
        """Let the schedules by steps walk one round's stretch.

        With manual optimisation the module steps its schedules itself; they go on from where the round's first client
        left them.
        """
        accumulate = int(self._trainer.accumulate_grad_batches)
        if self.by_step:
            for step in range(1, self._schedule_steps + 1):
                # The last step may come after fewer batches.
                self.step_in_client(step, min(step * accumulate, self._mean_batches))
        if self.first_client_end is not None:
            _, settings = self.first_client_end
            self._restore(*settings)

    def _settings(self) -> Settings:
        options: Options = []
        for optimizer in self._trainer.optimizers:
            options.append([_options(group) for group in optimizer.param_groups])
        schedules = [copy.deepcopy(config.scheduler.state_dict()) for config in self._trainer.lr_scheduler_configs]
        return options, schedules

    def _restore(self, options: Options, schedules: list[dict[str, Any]]) -> None:
        """Set the optimizers' options and, where clients may have moved them, the schedules' states."""
        for optimizer, groups in zip(self._trainer.optimizers, options, strict=True):
            # A callback that unfreezes layers appends groups.
            for group, values in zip(optimizer.param_groups, groups, strict=False):
                group.update(_options(values))
        if self.by_step or not self._automatic:
            self._set_schedules(schedules)

    def _set_schedules(self, states: Sequence[dict[str, Any]]) -> None:
        for config, state in zip(self._trainer.lr_scheduler_configs, states, strict=True):
            config.scheduler.load_state_dict(copy.deepcopy(state))


class _Memory:
    """The state, groups and attributes of an optimizer, and of those that it wraps, as SAM and Lookahead do."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizers = _with_wrapped(optimizer)
        held = [_held_by(each) for each in self._optimizers]
        # What is no container, tensor or array is not copied: parameters, optimizers, modules.
        self._not_copied = {id(leaf): leaf for leaf in tree_leaves(held) if not _changes(leaf)}
        self._held = copy.deepcopy(held, dict(self._not_copied))

    def put_back(self) -> None:
        """Put everything back as it was."""
        copied = copy.deepcopy(self._held, dict(self._not_copied))
        for optimizer, held in zip(self._optimizers, copied, strict=True):
            for name in _held_by(optimizer).keys() - held.keys():
                delattr(optimizer, name)
            vars(optimizer).update(held)


def _with_wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """Return an optimizer and those in its attributes, or in lists there, in theirs and so on, each once."""
    found = [optimizer]
    for each in found:
        for value in vars(each).values():
            for part in value if type(value) is list else [value]:
                # Not by `in`: optimizers of a user-defined class may be equal.
                if isinstance(part, Optimizer) and all(part is not known for known in found):
                    found.append(part)
    return found


def _copied_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return a copy of an optimizer's state as it is saved, for steps write to its tensors."""
    return copy.deepcopy(optimizer.state_dict()["state"]) if optimizer.state else {}


def _held_by(optimizer: Optimizer) -> dict[str, Any]:
    return {name: value for name, value in vars(optimizer).items() if name not in _COMMON}


def _changes(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, np.ndarray, set)) and not isinstance(leaf, nn.Parameter)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter group without its parameters; schedules set a learning rate in a tensor in place."""
    options = {name: value for name, value in group.items() if name != "params"}
    for name, value in options.items():
        if isinstance(value, Tensor):
            options[name] = value.clone()
    return options
