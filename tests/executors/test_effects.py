"""Steps that do something beside computing with tensors end as if trained one after the other, stacked or not."""

from __future__ import annotations

import array
import contextvars
import csv
import decimal
import functools
import io
import itertools
import logging
import os
import queue
import random
import re
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.stacked import clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule

SIZES = (8, 13, 6, 9)
CASES: dict[str, Callable[..., Any]] = {}
QUICK = {
    "prints",
    "logs",
    "files",
    "environment",
    "own_generator",
    "text_of_tensor",
    "trainer_in_closure",
    "data_write",
}
QUICK |= {"global_number", "swallowed_exception", "missing_class", "attribute_later", "default_argument", "hook_later"}
QUICK |= {
    "rate_in_step",
    "jit_branch",
    "data_write",
    "iterator",
    "property_setter",
    "class_attribute",
    "numpy_generator",
}
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


class World:
    """What the steps of one fit change."""

    def __init__(self, path: Path) -> None:
        self.path, self.told, self.number, self.stream = path, list[Any](), 0, io.StringIO()
        self.random, self.numpy, self.torch = random.Random(1), np.random.default_rng(1), torch.Generator()
        self.torch.manual_seed(1)
        self.local, self.queue, self.array = threading.local(), queue.Queue[int](), array.array("d")
        self.iterator, self.context = itertools.count(), decimal.Context(prec=5)
        self.values, self.tensor, self.slots = np.zeros(3), torch.zeros(3).double(), Slots()
        self.trainer: Any = None

    def seen(self) -> list[Any]:
        held = [self.told, self.number, self.stream.getvalue(), list(self.queue.queue), list(self.array)]
        held += [next(self.iterator), self.values.tolist(), self.tensor.tolist(), self.slots.count, Counts.total]
        held += [self.random.random(), self.numpy.random(), torch.rand(1, generator=self.torch).item()]
        held += [getattr(self.local, "x", None), VARIABLE.get(), decimal.getcontext().prec, cached.cache_info().misses]
        held += [os.environ.get("FL_NASTY"), sorted(name for name in sys.modules if name.startswith("nasty"))]
        held += [sorted((file.name, file.read_text()) for file in self.path.iterdir()), default.__defaults__]
        return held


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Counts:
    total = 0


WORLD: World


@functools.lru_cache
def cached(number: int) -> float:
    return 1.0 + number / 10


@functools.lru_cache
def cached_draw() -> Tensor:
    return torch.rand(()).double()


def default(seen: list[int] = []) -> int:  # noqa: B006
    seen.append(1)
    return len(seen)


@torch.compiler.disable
def disabled(text: str) -> None:
    WORLD.told.append(text)


class Module(L.LightningModule):
    """Takes the step of a case."""

    def __init__(self, case: Callable[..., Any], world: World) -> None:
        super().__init__()
        self.layers, self.case, self.world = linear().double(), case, world
        self.count, self.scale, self.lines, self.notes = 0, 1.0, list[int](), dict[str, int]()
        self.register_buffer("kept", torch.zeros(()).double())
        self.save_hyperparameters({"factor": 1.0})
        self._rate = 0.0

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, value: float) -> None:
        self.world.told.append(value)
        self._rate = value

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        changed = self.case(self, self.world, loss, batch, batch_idx)
        loss = loss if changed is None else changed
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


# m: the module, w: what is changed outside, loss, b: the batch, i: its index
# fmt: off
def _global_number(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    global NUMBER
    NUMBER += 1
    w.number = NUMBER
    return loss * (1 + NUMBER / 100)


def _swallowed(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    try:
        m.logger.experiment.anything(i)
    except Exception:
        return 2 * loss
    return loss


def _cholesky(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    try:
        return loss + torch.linalg.cholesky(b[0].T @ b[0] - 3 * torch.eye(6).double()).sum()
    except Exception:
        return 2 * loss


def _silenced(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    try:
        w.told.append(i)
        raise ValueError
    except ValueError:
        w.told.append("caught")
    return loss


def _slot(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    w.slots.count += 1
    return loss * w.slots.count


def _class(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    Counts.total += 1
    return loss * (1 + Counts.total / 100)


def _local(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    w.local.x = getattr(w.local, "x", 0) + 1
    return loss * w.local.x


def _file(m: Any, w: World, loss: Tensor, b: Any, i: int) -> None:
    with open(w.path / "file", "a") as file:
        file.write(f"{i}\n")


def _seeds(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    torch.manual_seed(i)
    return loss * torch.rand(()).double()


def _later(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    if m.current_epoch == 1:
        m.count += 1
    return loss * (1 + m.count / 10)


def _later_tensor(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    if m.current_epoch == 2:
        w.tensor += loss.detach()
    return loss


def _mode(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    return m.layers.train(not m.layers.training)(b[0]).sum() * 0 + loss


def _rate(m: Any, w: World, loss: Tensor, b: Any, i: int) -> None:
    w.trainer.optimizers[0].param_groups[0]["lr"] = 0.1 / (i + 1)


def _with_hook(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    loss.register_hook(lambda gradient: w.told.append(i))
    return loss


def _select(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    x = torch.select_scatter(b[0], m.layers(b[0]).sum(1), 1, 2)
    return loss + torch.slice_scatter(x, b[0][:, :1], 1, 3, 4).square().mean()


def _ties(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    x = m.layers(b[0]).relu()
    return loss + x.max(1).values.mean() + x.amax() + torch.cat([x, x]).max() + x.median()


def _padding(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    return loss + F.embedding(b[1], m.layers[2].weight, padding_idx=1).square().sum()


def _numpy_loss(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    return loss * float(np.exp(b[0].numpy().mean()))


def _grads(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    with torch.no_grad():
        m.layers[0].weight.data.mul_(0.99)
    return loss


def _jit(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    return loss if torch.jit.is_scripting() or torch.compiler.is_compiling() else loss.clone()


def _compiling(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    return 2 * loss if torch.compiler.is_compiling() else loss


def _jit_branch(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    return 2 * loss if torch.jit.is_tracing() or torch.jit.is_scripting() else loss


def _grad_mode(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    torch.set_grad_enabled(True)
    return loss if torch.is_grad_enabled() else loss * 0


def _data_module(m: Any, w: World, loss: Tensor, b: Any, i: int) -> None:
    w.trainer.datamodule.seen = getattr(w.trainer.datamodule, "seen", 0) + 1
    w.number = w.trainer.datamodule.seen


def _module_data(m: Any, w: World, loss: Tensor, b: Any, i: int) -> None:
    m.trainer.datamodule.seen = getattr(m.trainer.datamodule, "seen", 0) + 1
    w.trainer.datamodule.seen += 10
    w.told.append(w.trainer.datamodule.seen)


def _queue(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    w.queue.put(i)
    return loss * w.queue.qsize()


def _add_layer(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    m.layers[0].extra = i
    return loss


def _weight_ema(m: Any, w: World, loss: Tensor, b: Any, i: int) -> Tensor:
    m.kept = 0.9 * m.kept + 0.1 * loss.detach()
    return loss + m.kept


NUMBER = 0
CASES |= {
    "prints": lambda m, w, loss, b, i: print(f"step {i}"),
    "prints_a_tensor": lambda m, w, loss, b, i: print(f"{loss:.4f}"),
    "logs": lambda m, w, loss, b, i: logging.getLogger("nasty").warning("step %s", i),
    "string_stream": lambda m, w, loss, b, i: w.stream.write(f"{i},") and None,
    "error_stream": lambda m, w, loss, b, i: sys.stderr.write(f"{i}\n") and None,
    "files": _file,
    "path_written": lambda m, w, loss, b, i: (w.path / f"{time.monotonic_ns() * 0 + i}").write_text("x") and None,
    "environment": lambda m, w, loss, b, i: os.environ.update(FL_NASTY=os.environ.get("FL_NASTY", "") + "x"),
    "decimal_context": lambda m, w, loss, b, i: setattr(decimal.getcontext(), "prec", decimal.getcontext().prec + 1),
    "modules_of_python": lambda m, w, loss, b, i: sys.modules.update({f"nasty{len(w.told)}{i}": types.ModuleType("x")}),
    "own_generator": lambda m, w, loss, b, i: loss * torch.rand((), generator=w.torch).double(),
    "numpy_generator": lambda m, w, loss, b, i: loss * w.numpy.random(),
    "python_generator": lambda m, w, loss, b, i: loss * w.random.random(),
    "global_python_generator": lambda m, w, loss, b, i: loss * random.random(),
    "global_numpy_generator": lambda m, w, loss, b, i: loss * np.random.rand(),
    "global_torch_generator": lambda m, w, loss, b, i: loss * torch.rand(()).double(),
    "clock": lambda m, w, loss, b, i: w.told.append(time.time() > 0),
    "context_variable": lambda m, w, loss, b, i: VARIABLE.set(VARIABLE.get() + 1) and None,
    "thread_local": _local,
    "queue": _queue,
    "array": lambda m, w, loss, b, i: w.array.append(i),
    "csv_writer": lambda m, w, loss, b, i: csv.writer(w.stream).writerow([i]) and None,
    "cached_function": lambda m, w, loss, b, i: loss * cached(i),
    "cached_draw": lambda m, w, loss, b, i: loss * cached_draw(),
    "disabled_function": lambda m, w, loss, b, i: disabled(f"{i}"),
    "text_of_tensor": lambda m, w, loss, b, i: loss * len(str(loss.detach())),
    "number_of_tensor": lambda m, w, loss, b, i: w.told.append(loss.item()),
    "jit_branch": _jit_branch,
    "compiled_or_not": _jit,
    "asks_if_compiled": _compiling,
    "trainer_in_closure": lambda m, w, loss, b, i: loss * (1 + w.trainer.global_step),
    "property_setter": lambda m, w, loss, b, i: setattr(m, "rate", float(i)),
    "data_module_by_trainer": _data_module,
    "data_module_by_module": _module_data,
    "rate_in_step": _rate,
    "numpy_array": lambda m, w, loss, b, i: w.values.__iadd__(i) is None or None,
    "numpy_of_batch": _numpy_loss,
    "data_write": lambda m, w, loss, b, i: loss * w.tensor.data.add_(1).sum(),
    "write_in_place": lambda m, w, loss, b, i: loss * w.tensor.add_(1).sum(),
    "weights_written": _grads,
    "batch_written": lambda m, w, loss, b, i: F.cross_entropy(m.layers(b[0].mul_(2)), b[1]),
    "swallowed_exception": _swallowed,
    "exception_of_its_own": _silenced,
    "cholesky": _cholesky,
    "seeds": _seeds,
    "grad_mode": _grad_mode,
    "ties": _ties,
    "padding": _padding,
    "scatter": _select,
    "missing_class": lambda m, w, loss, b, i: loss + F.one_hot(b[1] + 1, 3).double().mean(),
    "global_number": _global_number,
    "class_attribute": _class,
    "default_argument": lambda m, w, loss, b, i: loss * default(),
    "iterator": lambda m, w, loss, b, i: loss * (1 + next(w.iterator) / 100),
    "slots": _slot,
    "hyperparameters": lambda m, w, loss, b, i: m.hparams.update(factor=m.hparams["factor"] + 1),
    "list_of_module": lambda m, w, loss, b, i: m.lines.append(i),
    "dict_of_module": lambda m, w, loss, b, i: m.notes.update({str(len(m.notes)): i}),
    "attribute_of_a_layer": _add_layer,
    "buffer": _weight_ema,
    "attribute_later": _later,
    "tensor_later": _later_tensor,
    "gradient_hook": _with_hook,
    "mode_of_layers": _mode,
    "nothing": lambda m, w, loss, b, i: loss * m.scale,
}


class Changes(Callback):
    """Changes something between rounds."""

    def __init__(self, change: Callable[[Any, Any, int], Any]) -> None:
        self.change = change

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.change(module, module.world, trainer.current_epoch)


CHANGES: dict[str, Callable[[Any, Any, int], Any]] = {
    "hook_later": lambda m, w, r: r == 1 and m.layers[0].register_forward_hook(lambda *a: 2 * a[2]),
    "telling_hook_later": lambda m, w, r: r == 1 and m.layers[0].register_forward_hook(lambda *a: w.told.append(r)),
    "pre_hook_later": lambda m, w, r: r == 2 and m.layers[2].register_forward_pre_hook(lambda _, a: (a[0] * 2,)),
    "backward_hook_later": lambda m, w, r: r == 1 and m.layers[0].register_full_backward_hook(
        lambda *a: w.told.append(r)),
    "hook_of_weight_later": lambda m, w, r: r == 1 and m.layers[0].weight.register_hook(lambda g: 2 * g),
    "case_later": lambda m, w, r: r == 1 and setattr(m, "case", CASES["prints"]),
    "forward_later": lambda m, w, r: r == 1 and setattr(m.layers[1], "forward", torch.sigmoid),
    "float_of_round": lambda m, w, r: setattr(m, "scale", 1.0 + r / 7),
    "layer_later": lambda m, w, r: r == 1 and m.layers.__setitem__(1, torch.nn.Tanh()),
    "frozen_later": lambda m, w, r: r == 1 and m.layers[0].requires_grad_(False),
    "step_later": lambda m, w, r: r == 1 and setattr(
        m, "training_step", lambda batch, batch_idx: 2 * type(m).training_step(m, batch, batch_idx)),
    "method_of_layer_later": lambda m, w, r: (r == 1 and setattr(
        m.layers[0], "extra_repr", lambda: "")) or setattr(m.layers[2], "forward", m.layers[2].forward),
}
# fmt: on


def fit(name: str, executor: str, path: Path, monkeypatch: Any, capfd: Any, caplog: Any) -> tuple[Any, ...]:
    """Return the weights, what was logged, what was seen, and why clients were not stacked."""
    global WORLD, NUMBER
    path.mkdir()
    torch._dynamo.reset()
    monkeypatch.delenv("FL_NASTY", raising=False)
    for held in [held for held in sys.modules if held.startswith("nasty")]:
        del sys.modules[held]
    NUMBER, Counts.total, default.__defaults__ = 0, 0, ([],)
    cached.cache_clear(), cached_draw.cache_clear(), VARIABLE.set(0), caplog.clear(), capfd.readouterr()
    L.seed_everything(0)
    WORLD = world = World(path)
    module = Module(CASES.get(name, CASES["nothing"]), world)
    callbacks: list[Callback] = [Changes(CHANGES[name])] if name in CHANGES else []
    callback = FedAvg(1.0, seed=0, executor=executor)
    trainer = world.trainer = quiet_trainer(max_epochs=3, callbacks=[*callbacks, callback])
    error = ""
    with decimal.localcontext():
        try:
            trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), SIZES), batch_size=4))
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        messages = [record.message for record in caplog.records if record.name == "nasty"]
        out, err = capfd.readouterr()
        seen = [
            error,
            messages,
            out,
            re.sub(r"(?m)^[EW]\d{4} .*\n", "", err),
            module.count,
            module.lines,
            module.notes,
            module.rate,
        ]
        seen += [dict(module.hparams), vars(module.layers[0]).get("extra"), *world.seen()]
    weights = torch.cat([value.double().flatten() for value in module.state_dict().values()])
    logged = {key: float(value) for key, value in trainer.callback_metrics.items()}
    return weights, logged, seen, getattr(trainer.fit_loop.executor, "cause", None)


def marks_of(name: str) -> list[Any]:
    return [pytest.mark.long] * (name not in QUICK)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in (*CASES, *CHANGES)])
def test_ends_as_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: Any, capfd: Any, caplog: Any, record_property: Any
) -> None:
    alone = fit(name, "sequential", tmp_path / "alone", monkeypatch, capfd, caplog)
    other = fit(name, "vectorized", tmp_path / "other", monkeypatch, capfd, caplog)
    print("stacked" if other[3] is None else f"refused: {other[3]}")
    torch.testing.assert_close(other[0], alone[0], rtol=0, atol=1e-9, equal_nan=True)
    assert other[1] == pytest.approx(alone[1], rel=1e-9, nan_ok=True)
    assert other[2] == alone[2]
