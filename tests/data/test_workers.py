"""Clients' batches that are made by other processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import pytest
import torch
from helpers.stacked import Module
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import Dataset

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule

SIZES = (7, 3, 10)


class Points(Dataset[Any]):
    """Inputs of four numbers and a class, with the process that read them on request."""

    def __init__(self, size: int, first: int, says_process: bool = False) -> None:
        self.numbers = list(range(first, first + size))
        self.says_process = says_process

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        number = self.numbers[index]
        if number == 1_000:
            raise KeyError(f"no sample {number}")
        values = torch.sin(torch.arange(4, dtype=torch.float64) + number)
        return (os.getpid() if self.says_process else values), number % 3


def noisy(x: Tensor) -> Tensor:
    return x + torch.rand(())


def clients(**options: Any) -> list[Any]:
    return [Points(size, 20 * place, **options) for place, size in enumerate(SIZES)]


def epochs(data: Any, client: int, number: int = 2) -> list[list[Tensor]]:
    """Return the batches of some epochs, and end the processes."""
    generator = torch.Generator().manual_seed(1)
    found = [batch for _ in range(number) for batch in data.client_batches(client, generator=generator)]
    data.end_workers()
    return found


def ready(**options: Any) -> ClientDatasetsModule:
    data = ClientDatasetsModule(**{"clients": clients(), "batch_size": 4, **options})
    data.setup("fit")
    return data


def weights(executor: Any, **options: Any) -> Tensor:
    torch.manual_seed(0)
    module = Module(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    callback = FedAvg(1.0, local_epochs=2, seed=1, executor=executor)
    data = ClientDatasetsModule(clients(), batch_size=4, **options)
    quiet_trainer(max_epochs=2, callbacks=[callback]).fit(module, datamodule=data)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize(("batch_size", "drop_last"), [(4, True), (None, False)])
def test_batches_and_their_order_are_those_of_one_process(batch_size: int | None, drop_last: bool) -> None:
    options = {"batch_size": batch_size, "drop_last": drop_last}
    for client in range(3):
        alone, helped = (epochs(ready(num_workers=number, **options), client) for number in (0, 2))
        assert len(alone) == len(helped)
        for left, right in zip(alone, helped, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_other_processes_read_the_samples() -> None:
    here, there = (epochs(ready(clients=clients(says_process=True), num_workers=n), 2) for n in (0, 2))
    assert {int(pid) for pids, _ in here for pid in pids} == {os.getpid()}
    assert os.getpid() not in {int(pid) for pids, _ in there for pid in pids}


def test_rows_of_tensors_are_gathered_here() -> None:
    data = TensorDataModule([(torch.arange(4.0), torch.arange(4))], num_workers=2)
    data.setup()
    before = multiprocessing.active_children()
    generator = torch.Generator().manual_seed(1)
    assert sum(len(x) for x, _ in data.client_batches(0, generator=generator)) == 4
    assert set(multiprocessing.active_children()) <= set(before)


def test_random_transforms_depend_on_the_seed_and_not_on_the_number_of_processes() -> None:
    options = {"train_transform": noisy, "shuffle": False}
    one, two = (epochs(ready(num_workers=number, **options), 2) for number in (1, 2))
    for (left, _), (right, _) in zip(one, two, strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(one[0][0], one[3][0])  # the first batch of each epoch


def test_a_fit_gives_the_same_weights_in_any_executor_and_ends_the_processes() -> None:
    before = multiprocessing.active_children()
    one_by_one, at_once = (weights(executor, num_workers=2) for executor in ("sequential", "vectorized"))
    assert torch.allclose(one_by_one, at_once, rtol=0, atol=1e-8)
    assert torch.equal(weights("sequential", num_workers=1), one_by_one)
    assert torch.equal(weights("sequential"), one_by_one)
    assert set(multiprocessing.active_children()) <= set(before)


def _train_and_stay(end: Any) -> None:
    """Make a batch by another process, and wait to be killed."""
    data = ready(num_workers=1)
    next(iter(data.client_batches(0, generator=torch.Generator())))
    end.send("ready")
    signal.pause()


def test_no_process_outlives_a_killed_training() -> None:
    ours, theirs = multiprocessing.Pipe()
    training = multiprocessing.get_context("fork").Process(target=_train_and_stay, args=(theirs,))
    training.start()
    theirs.close()
    assert ours.recv() == "ready"
    training.kill()
    training.join()
    # the end of the pipe is open as long as a process that was made within the training lives
    assert ours.poll(60)
    with pytest.raises(EOFError):
        ours.recv()


def test_an_error_in_a_sample_is_the_fits_error_and_ends_the_processes() -> None:
    before = multiprocessing.active_children()
    data = ClientDatasetsModule([Points(3, 999)], batch_size=2, num_workers=1)
    module = Module(nn.Linear(4, 3))
    with pytest.raises(KeyError, match="no sample 1000"):
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(1)]).fit(module, datamodule=data)
    assert set(multiprocessing.active_children()) <= set(before)
