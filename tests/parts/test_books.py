"""Counts of a round's report, on all processes, and the sums of the books, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.begun import begun

from fl_lightning import parts
from fl_lightning.parts import ArrivalRecord, Term, further_tasks


class Telling(parts.LocalObjective):
    """Sends two vectors and a loss besides, and gets three numbers."""

    vectors_sent = 3
    numbers_down = 3

    def loss_of(self, task: parts.Task) -> float:
        return 0.0


class Choosing(parts.Synchronous):
    """Sends ten further models to each client, a choice and five numbers, and has edges."""

    sends_choice = True
    numbers_sent = 5
    edge_models = (2, 4)

    def further_models(self, sent: int) -> int:
        return 10 * sent


class Scoring(parts.UniformSampler):
    def score(self, client: Any) -> float:
        return 0.0


TASKS = [parts.Task(0, 2, 3), parts.Task(1, 0, 1)]
#: Of three parameters of 32 bits one client sends all, the other one two with their places.
UPLOADS = [(TASKS[0], parts.Payload(3, 32)), (TASKS[1], parts.Payload(2, 32, 4))]


def test_everything_that_is_sent_in_a_round() -> None:
    run = begun(objective=Telling(), schedule=Choosing(), sampler=Scoring(2)).run
    report = parts.RoundReport([0, 2], 1, [], 3, TASKS, UPLOADS, scored=7, numbers=11)
    # Parameters, a buffer and the other vectors: four values for two clients, of thirty further models, and twice three
    # for each of three clients; to each of these three also five and three numbers.
    values_down = 2 * 4 + 30 * 4 + 3 * 2 * 3 + 3 * (5 + 3)
    # Two clients send a score, a loss, a choice and five numbers; seven were asked before the draw.
    numbers_up = 2 * (3 + 5) + 7 + 11
    expected = {
        "models_down": 2 + 30 + 3 * 2,
        "models_up": 2 * 3,
        "values_down": values_down,
        "values_up": (3 + 2) + 2 + 2 * 2 * 3 + numbers_up,
        "bits_down": 32 * values_down,
        "bits_up": (96 + 68) + 2 * 32 + 2 * 2 * 96 + 32 * numbers_up,
        "edge_models_down": 2,
        "edge_models_up": 4,
        "edge_bits_down": 2 * 4 * 32,
        "edge_bits_up": 4 * 4 * 32,
    }
    for rounds in (1, 2):
        run.books.count(report, ["count"])
        assert vars(run.books.traffic) == {name: rounds * number for name, number in expected.items()}
    assert run.books.message_bits() == [(32 * (3 + 1 + 2 * 3),) * 2] * 3


def test_reports_of_processes_are_joined() -> None:
    arrivals = [ArrivalRecord(0, 0.0, 1.0, 0, "used")]
    drawn = {"dropped": 1, "num_sent": 4, "receivers": TASKS, "scored": 2, "arrivals": arrivals}
    mine = parts.RoundReport([2], left_out=[3], uploads=UPLOADS[:1], scores={2: 0.5}, numbers=4, **drawn)
    other = parts.RoundReport([0], left_out=[1], uploads=UPLOADS[1:], scores={0: 1.5}, numbers=5, **drawn)
    expected = parts.RoundReport([0, 2], left_out=[1, 3], uploads=UPLOADS, scores={0: 1.5, 2: 0.5}, numbers=9, **drawn)
    assert repr(mine.joined([mine, other])) == repr(expected)


def test_stacks_of_adapters_that_a_client_lacks() -> None:
    # A of 2 x 3 and B of 4 x 2 are 14 numbers, and their product 12. A head of one number travels beside the stacks.
    shapes = torch.Size([2, 3]), torch.Size([4, 2]), torch.Size([1])
    layout = parts.Layout(("m.lora_A.weight", "m.lora_B.weight", "head"), shapes, 3, (32, 32, 32))
    messages = parts.StackMessages()
    messages.begin_fit(parts.Federation(np.ones(3), torch.zeros(15), layout))
    for sizes, numbers in (([], [15, 15, 15]), ([5, 6], [12, 12, 7]), ([5, 8], [13, 13, 9])):
        messages.sizes, messages.known = sizes, {2: 1}
        messages.begin_round(len(sizes))
        tasks = [parts.Task(2 - client, client, 1) for client in range(3)]
        assert [messages.payload_down(parts.Payload(15, 32), task).values for task in tasks] == numbers
        assert messages.payload_down(parts.Payload(15, 32)).values == 15


def test_random_numbers_of_tasks_are_those_of_their_message() -> None:
    task = parts.Task(3, 4, 5, round=6)
    later = replace(task, repetition=2), replace(task, phase=1), replace(task, phase=1, message=1)
    assert [each.seeds for each in (task, *later)] == [(6, 4), (6, 4, 2), (6, 4, 0, 1), (6, 4, 0, 1)]
    assert [each.sending.seeds for each in (task, *later)] == [(6, 4), (6, 4, 2), (6, 4), (6, 4, 0, 1)]
    further = further_tasks([task], 0), further_tasks([replace(task, work=3)], phase=2)
    assert further == ([replace(task, phase=1, work=0)], [replace(task, phase=2, work=3)])


@pytest.mark.parametrize(
    ("linear", "value", "gradients"), [([], 5.0, [[2.0], [6.0, 1.0]]), ([[2.0], [1.0, 0.0]], 10.0, [[4.0], [7.0, 1.0]])]
)
def test_a_term_by_hand(linear: list[list[float]], value: float, gradients: list[list[float]]) -> None:
    # pull 2 from (0), (1, 5) to (1), (3, 5): 1 + 4; and 2 * 1 + 1 * 3. Gradients were (0), (2, 1).
    term = Term(pull=2.0)
    now = [torch.nn.Parameter(torch.tensor(values)) for values in ([1.0], [3.0, 5.0])]
    start = [torch.tensor([0.0]), torch.tensor([1.0, 5.0])]
    for parameter, gradient in zip(now, ([0.0], [2.0, 1.0]), strict=True):
        parameter.grad = torch.tensor(gradient)
    slopes = [torch.tensor(values) for values in linear]
    assert float(term.value(now, start, slopes)) == value
    walk = parts.MoreauEnvelope(lam=2.0).walk(Mock())
    walk.w = start
    assert float(walk.value(now)) == 5.0
    term.add(now, start, slopes)
    assert [parameter.grad.tolist() for parameter in now if parameter.grad is not None] == gradients
