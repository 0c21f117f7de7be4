"""Federated averaging by hand, in plain torch: what every executor is compared with.

It shares no code with the library and runs no ``Trainer``. Seeds are derived here once more, by the formula that the
library documents: every client's work is seeded by (seed, round, client).
"""

from __future__ import annotations

import copy
import inspect
import io
import random
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import Tensor
from torchmetrics import Metric

from zoo.entry import Data, Entry
from zoo.outcome import Outcome, notes, outcome, parts_of
from zoo.stand_in import StandIn, attach

SAMPLING, CLIENT, SHUFFLE, SERVER = 0, 1, 2, 3  # what a seed is for
BATCH_SIZE, ROUNDS = 4, 2


def seed_of(purpose: int, *numbers: int) -> int:
    """Return the seed 0's derived seed for one purpose."""
    sequence = np.random.SeedSequence(np.array([0, purpose, *numbers], np.uint32))
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1


class Reference:
    """Trains an entry: each round all clients, one after the other, and the server takes their weighted mean.

    Args:
        entry: What is trained.
    """

    def __init__(self, entry: Entry) -> None:
        options = dict(entry.trainer)
        self.clip, self.clip_by = options.get("gradient_clip_val"), options.get("gradient_clip_algorithm", "norm")
        self.accumulate, self.precision = options.get("accumulate_grad_batches", 1), options.get("precision")
        self.rounds = options.get("max_epochs", ROUNDS)
        self.local_epochs = entry.federated.get("local_epochs", 1)
        self.entry, self.module = entry, entry.make()
        self.data: Data = entry.data(entry.sizes, entry.dtype)
        if self.precision == "64-true":
            self.module.double()
        self.callbacks = entry.callbacks()
        self.trainer = StandIn(max_epochs=self.rounds, accumulate_grad_batches=self.accumulate)
        self.log = attach(self.module, self.trainer)
        self._places = list(self._places_that_travel())

    def run(self) -> Outcome:
        """Train and return what is left behind."""
        module, trainer = self.module, self.trainer
        trainer.num_training_batches = self.mean_batches()
        trainer.estimated_stepping_batches = self.rounds * self.mean_steps()
        self._configure_optimizer()
        self.call("on_train_start")
        with redirect_stdout(io.StringIO()) as printed:
            for round_index in range(self.rounds):
                trainer.current_epoch = round_index
                self._train_round(round_index)
                if trainer.should_stop:
                    break
        values = {**trainer.callback_metrics, "global_step": trainer.global_step, "rounds": round_index + 1}
        outside = [self.entry.outside(), notes(self.callbacks), parts_of(printed.getvalue())]
        return outcome(module, outside, trainer.logger.calls, values, ["fed/", *self.entry.not_by_hand])

    # ---- what there is to do ----

    def batches_of(self, client: int) -> int:
        """Return the number of batches of a client's epoch."""
        return -(-self.data.sizes()[client] // BATCH_SIZE)

    def mean_batches(self) -> int:
        """Return the mean number of batches of a client's local training, rounded up."""
        batches = [self.local_epochs * self.batches_of(client) for client in range(len(self.data.clients))]
        return -(-sum(batches) // len(batches))

    def mean_steps(self) -> int:
        """Return how far a schedule by steps walks in a round."""
        return -(-self.mean_batches() // self.accumulate)

    def _places_that_travel(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield where parameters and buffers are held, frozen ones too, but not metrics'; tied ones once."""
        seen: set[int] = set()
        for submodule in self.module.modules():
            for held in () if isinstance(submodule, Metric) else (submodule._parameters, submodule._buffers):
                for name, tensor in held.items():
                    if tensor is not None and id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield held, name

    def _travelling(self) -> list[Tensor]:
        """Return what travels; a buffer may be another tensor after an assignment."""
        return [held[name] for held, name in self._places]

    # ---- a round ----

    def _train_round(self, round_index: int) -> None:
        sizes, trainer = self.data.sizes(), self.trainer
        generator = np.random.default_rng(np.random.SeedSequence(np.array([0, SAMPLING, round_index], np.uint32)))
        order = generator.choice(len(sizes), size=len(sizes), replace=False).tolist()
        trainer.num_training_batches = self.local_epochs * sum(self.batches_of(client) for client in order)
        self.call("on_train_epoch_start")
        start, settings = [tensor.detach().clone() for tensor in self._travelling()], self._settings()
        sums = [torch.zeros_like(tensor, dtype=torch.float64) for tensor in start]
        self._done = weight = 0
        for client in order:
            self._load(start)
            self._restore(settings)
            self._train_client(round_index, client)
            if all(bool(parameter.isfinite().all()) for parameter in self.module.parameters()):
                weight += sizes[client]
                for total, tensor in zip(sums, self._travelling(), strict=True):
                    total += sizes[client] * tensor.detach().double()
        self._load([total / weight for total in sums])
        self._restore(settings)
        self._seed(SERVER, round_index)
        self._end_round()

    def _end_round(self) -> None:
        self._walk_schedule(self.mean_steps())
        for config in self.schedulers:
            if config.get("interval", "epoch") == "epoch":
                config["scheduler"].step()
        self.log.in_step = False
        self.log.show_round()
        self.call("on_train_epoch_end")
        self.log.end_round()
        for callback in self.callbacks:
            if isinstance(callback, EarlyStopping):
                callback.on_train_epoch_end(self.trainer, self.module)  # type: ignore[arg-type]
        self.log.in_step = True

    @torch.no_grad()
    def _load(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._travelling(), values, strict=True):
            tensor.copy_(value if tensor.is_floating_point() else value.double().round())

    def _seed(self, purpose: int, *numbers: int) -> None:
        seed = seed_of(purpose, *numbers)
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` formats the stack for each client
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)

    # ---- a client ----

    def _train_client(self, round_index: int, client: int) -> None:
        shuffle = torch.Generator().manual_seed(seed_of(SHUFFLE, round_index, client))
        self.optimizer.state.clear()
        self.optimizer.zero_grad()
        self._call_callbacks("on_client_start", _Client(client))
        self._seed(CLIENT, round_index, client)
        self._window = self._steps = 0
        for epoch in range(self.local_epochs):
            order = torch.randperm(self.data.sizes()[client], generator=shuffle)
            batches = order.split(BATCH_SIZE)
            for index, positions in enumerate(batches):
                batch = self.data.batch(client, positions.tolist())
                self.log.batch_size = len(positions)
                self._train_batch(batch, epoch * len(batches) + index, index + 1 == len(batches))
        self._call_callbacks("on_client_end", _Client(client))

    def _train_batch(self, batch: Any, batch_idx: int, ends_epoch: bool) -> None:
        if self.precision == "64-true":
            batch = [part.double() if part.is_floating_point() else part for part in batch]
        batch = self.module.on_after_batch_transfer(batch, 0)
        self._window += 1
        steps = ends_epoch or self._window == self.accumulate
        self._call_callbacks("on_train_batch_start", batch, self._done)
        self._call_module("on_train_batch_start", batch, batch_idx)
        outputs: dict[str, Any] = {}
        if steps:
            self._step(batch, batch_idx, outputs)
            self.trainer.global_step += 1
            self._steps += 1
            if self._steps <= self.mean_steps():
                self._walk_schedule(1)
            self._window = 0
        else:
            self._forward_and_backward(batch, batch_idx, outputs)
        self._call_callbacks("on_train_batch_end", outputs, batch, self._done)
        self._call_module("on_train_batch_end", outputs, batch, batch_idx)
        self._done += 1
        self.log.end_batch(steps, is_last=self._done == self.trainer.num_training_batches)

    def _step(self, batch: Any, batch_idx: int, outputs: dict[str, Any]) -> None:
        def closure() -> Any:
            with torch.enable_grad():
                loss = self._forward_and_backward(batch, batch_idx, outputs)
            self.call("on_before_optimizer_step", self.optimizer)
            self._clip()
            return loss

        if self._overrides("optimizer_step"):
            self.module.optimizer_step(self.trainer.current_epoch, batch_idx, self.optimizer, closure)  # type: ignore[arg-type]
        else:
            self.optimizer.step(closure)

    def _forward_and_backward(self, batch: Any, batch_idx: int, outputs: dict[str, Any]) -> Any:
        takes_index = len(inspect.signature(self.module.training_step).parameters) > 1
        with self._precision():
            output = self.module.training_step(*((batch, batch_idx) if takes_index else (batch,)))
        if self._window == 1:
            self.call("on_before_zero_grad", self.optimizer)
            self.optimizer.zero_grad()
        if output is None:
            return None
        loss = output["loss"] if isinstance(output, dict) else output
        outputs.update(output if isinstance(output, dict) else {})
        loss = loss / self.accumulate
        outputs["loss"] = loss.detach()
        self.call("on_before_backward", loss)
        loss.backward()
        self.call("on_after_backward")
        return loss.detach()

    def _clip(self) -> None:
        if self._overrides("configure_gradient_clipping"):
            self.module.configure_gradient_clipping(self.optimizer, self.clip, self.clip_by)
        elif self.clip is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            by = torch.nn.utils
            (by.clip_grad_norm_ if self.clip_by == "norm" else by.clip_grad_value_)(parameters, self.clip)

    @contextmanager
    def _precision(self) -> Iterator[None]:
        if self.precision == "bf16-mixed":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                yield
        elif self.precision == "64-true":
            torch.set_default_dtype(torch.float64)
            yield
            torch.set_default_dtype(torch.float32)
        else:
            yield

    # ---- optimizers, schedules, hooks ----

    def _configure_optimizer(self) -> None:
        made: Any = self.module.configure_optimizers()
        if isinstance(made, tuple):
            made = {"optimizer": made[0][0], "lr_scheduler": made[1][0]}
        made = made if isinstance(made, dict) else {"optimizer": made}
        self.optimizer = made["optimizer"]
        config = made.get("lr_scheduler")
        config = {"scheduler": config} if config is not None and not isinstance(config, dict) else config
        self.schedulers: list[dict[str, Any]] = [] if config is None else [config]
        self.trainer.optimizers = [self.optimizer]

    def _walk_schedule(self, steps: int) -> None:
        for config in self.schedulers:
            if config.get("interval", "epoch") == "step":
                for _ in range(steps):
                    config["scheduler"].step()

    def _settings(self) -> Any:
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return groups, [copy.deepcopy(config["scheduler"].state_dict()) for config in self.schedulers]

    def _restore(self, settings: Any) -> None:
        for group, values in zip(self.optimizer.param_groups, settings[0], strict=True):
            group.update(values)
        for config, state in zip(self.schedulers, settings[1], strict=True):
            config["scheduler"].load_state_dict(copy.deepcopy(state))

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of the callbacks, then of the module."""
        self._call_callbacks(hook, *args)
        self._call_module(hook, *args)

    def _overrides(self, hook: str) -> bool:
        return getattr(type(self.module), hook) is not getattr(L.LightningModule, hook)

    def _call_module(self, hook: str, *args: Any) -> None:
        getattr(self.module, hook)(*args)

    def _call_callbacks(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            of_user = Callback in type(callback).__bases__ and not type(callback).__module__.startswith("lightning.")
            if of_user and hasattr(callback, hook):
                getattr(callback, hook)(self.trainer, self.module, *args)


class _Client:
    """What ``on_client_start`` and ``on_client_end`` are given."""

    def __init__(self, client: int) -> None:
        self.task = self
        self.client = client
