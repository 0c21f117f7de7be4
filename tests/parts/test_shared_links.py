"""Clients of a round whose messages share a link: times by hand, of max-min fair rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Descending, Quadratic, clients_that_reach, fit_clients
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning.diagnostics import VirtualTime
from fl_lightning.parts import Participation, PersonalParameters, SharedLink, VirtualClock
from fl_lightning.testing.processes import on_two_processes

# A model is four float64 values: 256 bits.
START = [0.0] * 4
BITS = 256


def clients(number: int) -> list[tuple[Tensor, Tensor]]:
    return clients_that_reach([[1.0, 2.0, 3.0, 4.0]] * number, [1] * number)


def times(clock: VirtualClock, number: int = 2, rounds: int = 1, **options: Any) -> tuple[float, float]:
    """Return when the last client's answer is there, and the mean over clients of when theirs are."""
    time = VirtualTime(clock)
    callback = fl.FedAvg(1.0, **options)
    trainer = fit_clients(callback, Quadratic(0.1, START), clients(number), rounds, time)
    return time.now, time.now * float(trainer.callback_metrics["fed/utilization"])


@pytest.mark.parametrize(
    ("links", "options", "ends"),
    [
        # Each has half of the link: 2 down, 3 of work, 2 up.
        ([SharedLink(BITS)], {}, [7.0, 7.0]),
        # The second answers at 8, when the first has been there for 2.
        ([SharedLink(BITS)], {"speeds": [2, 1]}, [6.0, 9.0]),
        # The first answers from 5 on, the second from 5.5 on: they share the link until 6.5.
        ([SharedLink(BITS)], {"delay": [0, 0.5]}, [6.5, 7.0]),
        # The first has a slow line of its own, and leaves the rest: 4 and 4/3 down, 4 and 1 up.
        ([SharedLink(BITS)], {"bandwidth": [BITS / 4, BITS * 9]}, [11.0, 16 / 3]),
        ([SharedLink(BITS, upload_capacity=BITS / 2)], {}, [9.0, 9.0]),
        # Own lines up are the limit: each has an eighth of the link.
        ([SharedLink(BITS)], {"bandwidth": BITS * 9, "upload_bandwidth": BITS / 8}, [13.0, 13.0]),
        # The server's link, and that of a group: two have an eighth each, the third the rest: 4/3 down, 1 up.
        ([SharedLink(BITS), SharedLink(BITS / 4, clients=[0, 1])], {}, [19.0, 19.0, 3 + 4 / 3 + 1]),
        # Others share nothing, and have no limit.
        ([SharedLink(BITS, clients=[2, 0])], {}, [7.0, 3.0, 7.0]),
    ],
)
def test_messages_under_way_have_max_min_fair_rates(
    links: list[SharedLink], options: dict[str, Any], ends: list[float]
) -> None:
    clock = VirtualClock(**{"speeds": 2, "work": 6, "shared_links": links, **options})
    assert times(clock, len(ends)) == pytest.approx((max(ends), sum(ends) / len(ends)), rel=1e-6)


def test_clients_that_send_nothing_wait_for_nothing() -> None:
    clock = VirtualClock(2, work=6, shared_links=[SharedLink(1)])
    assert times(clock, exchange=PersonalParameters("*")) == (3.0, 3.0)


class TwoLayers(Descending):
    """Two layers with six units between, or fewer: four float64 values a unit, and a count of batches of 64 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, 6, bias=False), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 1, bias=False)
        ).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layers(batch[0]).square().mean()


def test_who_has_received_a_small_message_leaves_the_link_to_the_others() -> None:
    # Messages of 9 and 25 numbers on a link of 2: both have half of it until 9, then the second all of it until 17.
    # Answers begin at 12 and 20, and each has the whole link.
    clock = VirtualClock(2, work=6, shared_links=[SharedLink(2 * 64)])
    time = VirtualTime(clock)
    data = [(torch.ones(2, 1, dtype=torch.float64),) * 2] * 2
    trainer = fit_clients(fl.HeteroFL([1 / 3, 1.0], 1.0), TwoLayers(), data, 1, time)
    assert time.now == 32.5
    assert float(trainer.callback_metrics["fed/utilization"]) == pytest.approx((16.5 + 32.5) / 65)


def test_a_link_that_is_wide_enough_changes_nothing() -> None:
    some = Participation(stragglers=0.5)
    own = {"bandwidth": [100, 300, 700], "upload_bandwidth": 90, "jitter": 0.3, "delay": [0, 1, 0.1], "seed": 3}
    found = []
    for links in ([], [SharedLink(1e9), SharedLink(800, clients=[0, 2], upload_capacity=180)]):
        clock = VirtualClock([1, 2, 3], shared_links=links, **own)
        found.append(times(clock, 3, 3, local_epochs=4, participation=some))
    assert found[0] == found[1]


def test_a_part_of_the_work_is_a_part_of_its_time_and_a_whole_message() -> None:
    half = Participation(stragglers=1.0)
    for links, messages in (((), 2.0), ([SharedLink(BITS)], 4.0)):
        clock = VirtualClock(2, work=6, bandwidth=BITS, shared_links=links)
        # One of two epochs.
        assert times(clock, local_epochs=2, participation=half) == (1.5 + messages,) * 2


def four_rounds(rounds: int = 4, executor: str = "sequential", **options: Any) -> tuple[float, L.Trainer]:
    """Return when the fit ends: slow and fast clients, two in each round, and chance."""
    clock = VirtualClock([1, 2, 3], bandwidth=[90, 300, 700], jitter=0.7, shared_links=[SharedLink(400)])
    time = VirtualTime(clock)
    trainer = fit_clients(fl.FedAvg(2, executor=executor), Quadratic(0.1, START), clients(3), rounds, time, **options)
    return time.now, trainer


def test_a_run_that_is_resumed_has_the_same_times(tmp_path: Path) -> None:
    whole, _ = four_rounds()
    half, trainer = four_rounds(2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _ = four_rounds(ckpt_path=tmp_path / "half.ckpt")
    assert half < whole == resumed


@pytest.mark.long
def test_stacked_clients_and_two_processes_have_the_same_times(tmp_path: Path) -> None:
    expected, _ = four_rounds()
    stacked, _ = four_rounds(executor="vectorized")
    assert stacked == expected
    assert on_two_processes(lambda: four_rounds(devices=2, strategy="ddp")[0], tmp_path) == (expected, expected)
