"""Vectors that belong to clients, in memory and in a file; buffers; hyper-parameters over rounds."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, fit_quadratic, quadratic_clients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl_lightning import FedAsync, FedAvg, FedAvgM, FedProx, RADFed
from fl_lightning.parts import ClientVectors, Federation, Layout


def federation(num_clients: int, state_dir: Path | None = None, **ranks: int) -> Federation:
    return Federation(
        np.arange(1, num_clients + 1), torch.zeros(2), Layout.of_parameters(2), state_dir=state_dir, **ranks
    )


def states(tmp_path: Path, mapped: bool, num_clients: int = 4, **ranks: int) -> ClientVectors:
    return ClientVectors(federation(num_clients, tmp_path if mapped else None, **ranks), torch.tensor([1.0, 2.0]))


def finish(store: ClientVectors) -> None:
    """End a round."""
    store.commit()
    store.keep()


@pytest.mark.parametrize("mapped", [False, True], ids=["memory", "file"])
def test_a_client_has_the_initial_vector_until_it_hands_in_another(tmp_path: Path, mapped: bool) -> None:
    store = states(tmp_path, mapped)
    assert store[2].tolist() == [1.0, 2.0]
    store[2] = torch.tensor([5.0, 6.0])
    # the client may come again in the same round of an asynchronous algorithm; the server knows it when the round ends
    assert store[2].tolist() == [5.0, 6.0]
    assert (store.mean.tolist(), store.mean.dtype) == ([1.0, 2.0], torch.float64)
    finish(store)
    store[0] = torch.tensor([7.0, 7.0])
    store.put_back()
    assert store[2].tolist() == [5.0, 6.0]
    assert store[0].tolist() == [1.0, 2.0]
    assert store.mean.tolist() == [2.0, 3.0]  # (3 * 1 + 5) / 4, (3 * 2 + 6) / 4


@pytest.mark.parametrize("mapped", [False, True], ids=["memory", "file"])
def test_states_survive_a_checkpoint(tmp_path: Path, mapped: bool) -> None:
    store = states(tmp_path, mapped, num_clients=40)
    for client in range(0, 40, 2):
        store[client] = torch.tensor([client, -client], dtype=torch.float32)
    finish(store)
    torch.save(store.state_dict(), tmp_path / "states.pt")
    other = states(tmp_path, mapped, num_clients=40)
    other.load_state_dict(torch.load(tmp_path / "states.pt", weights_only=True))
    assert [other[k].tolist() for k in range(40)] == [store[k].tolist() for k in range(40)]
    assert torch.equal(other.mean, store.mean)
    copy = pickle.loads(pickle.dumps(store))
    assert [copy[k].tolist() for k in range(40)] == [store[k].tolist() for k in range(40)]


def test_a_client_s_vector_is_on_its_process() -> None:
    with pytest.raises(RuntimeError, match="client 4 is on process 0 of 2"):
        ClientVectors(federation(6, rank=1, num_ranks=2), torch.zeros(2))[4]


def test_a_file_holds_only_clients_that_trained_and_has_no_name(tmp_path: Path) -> None:
    store = ClientVectors(federation(10_000, tmp_path / "of" / "clients"), torch.zeros(50_000))
    store[9_999] = torch.ones(50_000)
    finish(store)
    assert float(store[9_999].sum()) == 50_000
    assert [names for _, _, names in os.walk(tmp_path)] == [[], [], []]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3, width=32)), max_size=30))
def test_the_mean_is_that_of_all_clients(changes: list[tuple[int, float]]) -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    store = ClientVectors(federation(4), torch.tensor([0.5]), weights)
    now = [0.5] * 4
    for client, value in changes:
        store[client] = torch.tensor([value])
        finish(store)
        now[client] = value
    assert float(store.mean) == pytest.approx(float(np.average(now, weights=weights)), abs=1e-9)


# ---- buffers ----


class Counting(Quadratic):
    """Its buffer counts batches, in training mode."""

    def __init__(self) -> None:
        super().__init__(lr=0.0)
        self.register_buffer("batches", torch.zeros((), dtype=torch.float64))
        self.at_start: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.at_start.append(float(self.batches))
        self.batches += 1
        return 1 * self.w


def count(callback: Any, rounds: int) -> Counting:
    """Train clients of 1 and 3 batches."""
    fit_clients(callback, module := Counting(), [(torch.zeros(1),), (torch.zeros(3),)], rounds, batch_size=1)
    return module


def counted(callback: Any, rounds: int) -> tuple[list[float], float]:
    """Return what each client of synchronous rounds started from, round by round, and the server's count."""
    module = count(callback, rounds)
    starts = [sorted(module.at_start[i : i + 2]) for i in range(0, 2 * rounds, 2)]
    return [start for pair in starts for start in pair], float(module.batches)


@pytest.mark.parametrize(
    ("callback", "starts", "server"),
    [
        (FedAvg(1.0), [0.0, 0.0, 2.5, 2.5], 5.0),  # (1 + 3 * 3) / 4 = 2.5 a round
        (FedAvg(1.0, buffers="local"), [0.0, 0.0, 1.0, 3.0], 5.0),  # then (2 + 3 * 6) / 4
        (FedAvg(1.0, buffers="server"), [0.0] * 4, 0.0),
        # the plain mean of what circulates
        (RADFed(4, 1.0, buffers="local"), [0.0, 0.0, 1.0, 3.0], 4.0),
        (RADFed(4, 1.0, buffers="server"), [0.0] * 4, 0.0),
    ],
)
def test_buffers_are_averaged_kept_or_the_servers(callback: Any, starts: list[float], server: float) -> None:
    assert counted(callback, rounds=2) == (starts, server)


@pytest.mark.parametrize(
    ("buffers", "starts", "server"),
    [
        # the server takes half of what arrives: 0.5, 1, 2, 2, 2.5, 3.75; client 0 starts from it at 1, 2 and 3 (there
        # before client 1's result of time 2 is), client 1 at 2
        ("average", [0.0, 0.5, 0.0, 1.0, 2.0, 2.0], 3.75),
        # 1, 2, 3, 3, 4, 6 arrive: 0.5, 1.25, 2.125, 2.5625, 3.28125, 4.640625
        ("local", [0.0, 1.0, 0.0, 2.0, 3.0, 3.0], 4.640625),
        ("server", [0.0] * 6, 0.0),
    ],
)
def test_buffers_of_asynchronous_clients(buffers: Any, starts: list[float], server: float) -> None:
    # client 0 arrives at 1, 2, 3, 4, client 1 at 2 and 4, after it
    callback = FedAsync(6, mixing=0.5, staleness="constant", speeds=[100, 50], buffers=buffers, lookahead=1)
    module = count(callback, rounds=1)
    assert (module.at_start, float(module.batches)) == (starts, server)


# ---- hyper-parameters over rounds ----


def test_a_schedule_of_mu() -> None:
    # mu = 0, then 1, two steps of 0.5 on w^2 / 2 from 1: 0.25; then 0.125 and 0.125 - 0.5 (0.125 - 0.125) = 0.125
    callback = FedProx(lambda t: float(t), clients_per_round=1, local_steps=2)
    weights = fit_quadratic(callback, Quadratic(0.5, start=1.0), quadratic_clients([1.0], [0.0]), rounds=2)
    assert float(weights) == 0.125


def test_a_schedule_of_momentum() -> None:
    # Delta = 1 in the first round: w = 1; then Delta = 0 and v = 0.5 * 1: w = 1.5
    callback = FedAvgM(lambda t: 0.5 * t, clients_per_round=1)
    weights = fit_quadratic(callback, Quadratic(1.0), quadratic_clients([1.0], [1.0]), rounds=2)
    assert float(weights) == 1.5
