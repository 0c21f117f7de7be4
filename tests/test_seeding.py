"""Seeds of all that is random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients
from torch import Tensor

from fl_lightning import FedAvg, seeding
from fl_lightning.parts.messages import Task
from fl_lightning.seeding import Stream


def test_seeds_depend_on_every_argument_and_never_change() -> None:
    assert seeding.derive_seed(1, Stream.CLIENT, 2, 3) == 3800415822099797715
    seeds = {seeding.derive_seed(s, stream, r, k) for s in (0, 1) for stream in Stream for r in (0, 1) for k in (0, 1)}
    assert len(seeds) == 2 * len(Stream) * 2 * 2
    largest = [seeding.derive_seed(seed, Stream.CLIENT) for seed in (2**32 - 1, 2**32)]
    assert largest == [3383245898191158016, 1554199118406742183]


def test_global_generators_are_seeded_alike() -> None:
    draws = []
    for _ in range(2):
        seeding.seed_global_generators(1, Stream.CLIENT, 5, 6)
        draws.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert draws[0] == draws[1]


def test_generators_that_were_drawn_from_are_named() -> None:
    draws = {"torch": lambda: torch.rand(()), "numpy": np.random.rand, "random": random.random}
    for name, draw in draws.items():
        before = seeding.global_states(None)
        draw()
        assert seeding.changed_generators(before, seeding.global_states(None)) == {name}
    assert seeding.changed_generators(before, before) == set()


class Accelerator:
    """Stands for a GPU's generator, which this machine lacks; all other GPUs are away meanwhile.

    Args:
        kind: The type of the device, as in ``torch.device(kind)``.
        monkeypatch: Puts it in.
    """

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.generator, self.is_there = torch.device(kind), torch.Generator(), True
        for other, module in (("cuda", torch.cuda), ("xpu", torch.xpu)):
            monkeypatch.setattr(module, "is_initialized", lambda own=kind == other: own and self.is_there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
        monkeypatch.setattr(torch.mps, "_is_in_bad_fork", lambda: not self.is_there)
        module = getattr(torch, kind)
        monkeypatch.setattr(module, "manual_seed" if kind == "mps" else "manual_seed_all", self.generator.manual_seed)
        monkeypatch.setattr(module, "get_rng_state", lambda device: self.generator.get_state())
        monkeypatch.setattr(module, "set_rng_state", lambda state, device: self.generator.set_state(state))

    def draw(self) -> float:
        return torch.rand((), generator=self.generator).item()


@pytest.fixture(params=["cuda", "mps", "xpu"])
def accelerator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    return Accelerator(request.param, monkeypatch)


def test_the_generator_of_a_gpu_is_seeded(accelerator: Accelerator) -> None:
    draws = []
    for number in (6, 7, 6):
        seeding.seed_global_generators(1, Stream.CLIENT, 5, number)
        draws.append(accelerator.draw())
    assert draws[0] == draws[2] != draws[1]
    accelerator.is_there = False  # as in a forked process, which cannot use it
    seeding.seed_global_generators(1, Stream.CLIENT, 5, 6)
    assert accelerator.draw() != draws[0]


def test_the_generator_of_a_gpu_is_put_back(accelerator: Accelerator) -> None:
    device = accelerator.device
    accelerator.generator.manual_seed(3)
    with seeding.preserved_generators(device):
        first, before = accelerator.draw(), seeding.global_states(device)
        second = accelerator.draw()
        assert seeding.changed_generators(before, seeding.global_states(device)) == {"torch"}
        seeding.set_global_states(before, device)
        assert accelerator.draw() == second
    assert accelerator.draw() == first
    with seeding.seeded(1, Stream.CLIENT, 5, device=device):
        assert accelerator.draw() not in (first, second)
    assert accelerator.draw() == second


def test_what_a_client_draws_on_a_gpu_does_not_depend_on_what_was_drawn_before(accelerator: Accelerator) -> None:
    class Draws(Quadratic):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            drawn.append(accelerator.draw())
            return super().training_step(batch, batch_idx)

    fits = []
    for _ in range(2):
        drawn: list[float] = []
        callback = FedAvg(1.0, seed=1, executor="sequential")
        fit_quadratic(callback, Draws(0.1), quadratic_clients([1.0, 1.0], [0.0, 1.0]), rounds=2)
        fits.append(drawn)
    assert fits[0] == fits[1]
    assert len(set(fits[0])) == 4  # two clients in two rounds


def test_a_task_draws_by_round_client_and_what_makes_it_differ_from_the_client_s_others() -> None:
    task = Task(slot=4, client=3, num_samples=1, round=2)
    assert task.seeds == (2, 3)
    assert replace(task, repetition=1).seeds == (2, 3, 1)
    assert replace(task, phase=1, message=1).seeds == replace(task, phase=1).seeds == (2, 3, 0, 1)
