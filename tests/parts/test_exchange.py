"""What travels: clipped updates, personal parameters, chains of exchanges."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.toys import BodyAndHead, Quadratic, fit_clients, fit_quadratic, quadratic_clients

from fl_lightning import FedAvg, FedBuff, Federated, RADFed
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import ClientResult, Clip, Exchange, LowRank, PersonalParameters, Synchronous, TopK

FOUR_AND_EIGHT = quadratic_clients([1.0, 1.0], [4.0, 8.0])


@pytest.mark.parametrize(
    ("make", "rounds", "expected"),
    [
        # a circulating model moves by one in each of its two trainings
        (lambda: RADFed(2, 1.0, exchange=Clip(1.0)), 2, 2.0),
        (lambda: FedBuff(2, 2, exchange=Clip(1.0)), 1, 1.0),
    ],
    ids=["radfed", "fedbuff"],
)
def test_every_update_that_is_sent_is_clipped(make: Any, rounds: int, expected: float) -> None:
    weights = fit_quadratic(make(), Quadratic(1.0), quadratic_clients([1.0, 1.0], [8.0, 9.0]), rounds)
    assert float(weights) == pytest.approx(expected, abs=1e-15)


class TwiceBefore(Synchronous):
    """Doubles updates before any exchange sees them."""

    def on_client_end(self, result: ClientResult) -> ClientResult:
        return result.with_delta(2 * result.delta)


def test_exchanges_get_what_the_schedule_makes_of_a_result() -> None:
    callback = Federated(1, schedule=TwiceBefore(), exchange=Clip(5.0))
    assert float(fit_quadratic(callback, Quadratic(1.0), quadratic_clients([1.0], [3.0]), rounds=1)) == 5.0


# ---- personal parameters ----


@pytest.mark.parametrize("pattern", ["head", "head.weight", "h*", ["head"]], ids=str)
def test_personal_layers_stay_with_their_clients(pattern: Any) -> None:
    # targets 4 and 8, lr 1/4: body and head both move by (c - body - head) / 4. Round 1: 1 and 2; the body becomes 3/2.
    # Round 2: client 0 has 4 - 3/2 - 1 = 3/2, moves by 3/8; client 1 has 8 - 3/2 - 2 = 9/2, moves by 9/8
    personal, communication, module = PersonalParameters(pattern), Communication(), BodyAndHead()
    fit_clients(FedAvg(1.0, exchange=personal), module, FOUR_AND_EIGHT, 2, communication)
    own = [personal.of_client(client) for client in (0, 1)]
    assert [list(tensors) for tensors in own] == [["head.weight"]] * 2
    heads = [float(tensors["head.weight"]) for tensors in own]
    assert heads == pytest.approx([1 + 3 / 8, 2 + 9 / 8], abs=1e-15)
    assert float(module.body.weight) == pytest.approx(3 / 2 + (3 / 8 + 9 / 8) / 2, abs=1e-15)
    assert float(module.head.weight) == pytest.approx(sum(heads) / 2, abs=1e-15)  # for evaluation
    # the body's one number of 8 bytes, for two clients in two rounds
    assert communication.values["fed/bytes_up"] == communication.values["fed/bytes_down"] == 2 * 2 * 8


@pytest.mark.parametrize("others", [[], [LowRank(1)], [TopK(0.5)]], ids=["alone", "low rank", "top k"])
def test_with_all_parameters_personal_each_client_trains_alone(others: list[Exchange]) -> None:
    # Body and head of client 0 (target 4, lr 1/4) move by (4 - 0) / 4 = 1 and by (4 - 2) / 4 = 1/2, those of client 1
    # (target 8) by 2 and by 1
    personal, communication, module = PersonalParameters("*"), Communication(), BodyAndHead()
    fit_clients(FedAvg(1.0, exchange=[personal, *others]), module, FOUR_AND_EIGHT, 2, communication)
    assert [[float(value) for value in personal.of_client(k).values()] for k in (0, 1)] == [[1.5, 1.5], [3.0, 3.0]]
    assert float(module.body.weight) == float(module.head.weight) == 2.25  # the mean, for evaluation
    assert communication.values["fed/bytes_up"] == communication.values["fed/bytes_down"] == 0
