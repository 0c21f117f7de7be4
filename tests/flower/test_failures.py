"""Clients that do not answer, SuperNodes that are started again, and servers that go on from a checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from helpers.listed import Listed
from helpers.marks import with_marks
from helpers.sites import Make, Sites, arrays_of, assert_kept, net, simulate, values_of
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import IFCA, Ditto, FedAvg, FedBABU, FedDyn, FedPer, FedProto, RADFed
from fl_lightning.parts import ActiveSampler, ImportanceSampler, Oort, PowerOfChoice, TierSampler, TopK, VirtualClock

ALL = [0, 1, 2]
EVERYBODY = partial(FedAvg, 1.0)
WITH_MOMENTUM = partial(net, momentum=0.9)
KEEPING: dict[str, Make] = {
    "FedPer": partial(FedPer, "head"),
    "Ditto": partial(Ditto, 0.5),
    "FedDyn": partial(FedDyn, 0.1),
    "fine-tuning": partial(FedBABU, "head", every=1, fine_tune_epochs=1, exchange=TopK(0.3)),
    "error feedback": lambda **more: FedAvg(exchange=TopK(0.3), **more),
    "IFCA": partial(IFCA, 2),
    "FedProto": FedProto,
    "optimizers": partial(FedAvg, optimizer_state="kept"),
}
#: Methods whose server goes on with a state of its own: clusters, prototypes, what samplers know of clients.
CLOCK = VirtualClock([3.0, 2.0, 1.0])
GOING_ON: dict[str, Make] = {
    "fine-tuning": partial(KEEPING["fine-tuning"], clients_per_round=1.0),
    "error feedback": partial(KEEPING["error feedback"], clients_per_round=1.0),
    "IFCA": partial(IFCA, 2, clients_per_round=2),
    "FedProto": partial(FedProto, clients_per_round=2),
    "power of choice": lambda **more: FedPer("head", sampler=PowerOfChoice(1, 2), **more),
    "AFL": lambda **more: FedAvg(sampler=ActiveSampler(2), **more),
    "Oort": lambda **more: FedAvg(sampler=Oort(2, CLOCK), **more),
    "optimizers": partial(FedAvg, 1.0, optimizer_state="kept"),
    "TiFL": lambda **more: FedAvg(sampler=TierSampler(1, CLOCK, num_tiers=2, interval=2), **more),
    "RADFedi": lambda **more: RADFed(2, sampler=ImportanceSampler(2), **more),
}


@pytest.mark.parametrize("name", with_marks(KEEPING, {"fine-tuning"}))
def test_a_client_that_answers_too_late_has_dropped_out_and_takes_its_round_back(name: str) -> None:
    method = KEEPING[name]
    sites = Sites(
        partial(method, sampler=Listed(ALL, ALL, ALL)),
        WITH_MOMENTUM,
        silent=lambda client, number: (client, number) == (1, 1),
    )
    deployed = sites.fit(rounds=3)
    expected_method = partial(method, sampler=Listed(ALL, [0, 2], ALL))
    simulated = simulate(expected_method, rounds=3, module=WITH_MOMENTUM())

    assert torch.equal(deployed.algorithm.server.model, simulated.algorithm.server.model)
    assert_kept(sites, simulated)


def test_a_client_without_an_answer_counts_as_dropped() -> None:
    sites = Sites(EVERYBODY, silent=lambda client, number: client == 1)
    report = sites.fit(rounds=1).algorithm.report
    assert (report.reported, report.dropped, report.num_sent) == ([0, 2], 1, 3)


def test_a_client_that_does_not_say_its_loss_is_the_last_to_be_chosen() -> None:
    class Deaf(Sites):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            replies = super().send_and_receive(messages, timeout=timeout)
            return [each for each in replies if each.metadata.src_node_id != 101 or "scores" not in values_of(each)]

    deployed = Deaf(lambda **more: FedAvg(sampler=PowerOfChoice(2, 3), **more)).fit(rounds=2).algorithm
    assert deployed.report.reported == [0, 2]
    simulated = simulate(partial(FedAvg, sampler=Listed([0, 2], [0, 2]))).algorithm
    assert torch.allclose(deployed.server.model, simulated.server.model)


def test_a_client_whose_node_has_left_counts_as_dropped() -> None:
    sites = Sites(EVERYBODY)

    def leave(client: int, number: int) -> bool:
        sites.contexts.pop(101, None)
        return False

    sites.silent = leave
    report = sites.fit(rounds=2).algorithm.report
    assert (report.reported, report.dropped) == ([0, 2], 1)


def test_a_super_node_that_is_started_again_takes_part_again(tmp_path: Path) -> None:
    sites = Sites(partial(FedPer, "head", sampler=Listed(ALL, ALL, ALL)), state_dir=tmp_path)

    def die(client: int, number: int) -> bool:
        """Lose the answer of client 1 in the second round, and start its node anew."""
        dies = (client, number) == (1, 1)
        if dies:
            del sites.contexts[101]
            sites.connect(1, 201, 1)
        return dies

    sites.silent = die
    deployed = sites.fit(rounds=3)
    simulated = simulate(partial(FedPer, "head", sampler=Listed(ALL, [0, 2], ALL)), rounds=3)
    assert torch.equal(deployed.algorithm.server.model, simulated.algorithm.server.model)
    assert deployed.algorithm.report.reported == ALL


class Losing(Sites):
    """Sites of which one is started again, with nothing, after each message."""

    def answer(self, question: Any, context: Any) -> Any:
        self.connect(1, 101, 1)
        return super().answer(question, context)


def test_a_super_node_that_has_lost_what_the_client_keeps_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"Client 1 .*from round 1, and does not have what it kept then"):
        Losing(partial(FedPer, "head", clients_per_round=1.0)).fit()


def test_a_super_node_that_has_lost_its_state_goes_on_where_the_client_keeps_nothing() -> None:
    assert torch.equal(Losing(EVERYBODY).fit().algorithm.server.model, simulate(EVERYBODY).algorithm.server.model)


@pytest.mark.parametrize("name", with_marks(GOING_ON, {"fine-tuning", "IFCA"}))
def test_a_server_that_is_started_again_goes_on_from_its_checkpoint_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    method = GOING_ON[name]
    saved = {"callbacks": [ModelCheckpoint(tmp_path, save_last=True)], "enable_checkpointing": True}
    expected = simulate(method, rounds=3, module=WITH_MOMENTUM()).algorithm
    first = Sites(method, WITH_MOMENTUM, state_dir=tmp_path / "sites")
    first.fit(rounds=2, **saved)
    # Clients have trained in a third round, whose answers a server took that was killed before it could save them.
    late = Sites(method, WITH_MOMENTUM, state_dir=tmp_path / "sites")
    late.fit(rounds=3, ckpt_path=str(tmp_path / "last.ckpt"))
    again = Sites(method, WITH_MOMENTUM, state_dir=tmp_path / "sites")
    resumed = again.fit(rounds=3, ckpt_path=str(tmp_path / "last.ckpt")).algorithm
    assert torch.equal(resumed.server.model, expected.server.model)
    assert resumed.report == expected.report


def test_a_client_whose_values_are_not_finite_is_left_out_and_sends_no_arrays() -> None:
    sites = Sites(EVERYBODY)
    x, y = sites.clients[1]
    sites.clients[1] = (x * torch.inf, y)
    report = sites.fit(rounds=1).algorithm.report
    assert (report.reported, report.left_out, report.dropped) == ([0, 2], [1], 0)
    answer = next(reply for reply in sites.replies if reply.metadata.src_node_id == 101 and "run" in values_of(reply))
    assert not arrays_of(answer)


def test_an_error_of_a_client_ends_the_fit_with_its_words() -> None:
    sites = Sites(EVERYBODY)
    sites.clients[2] = (torch.randn(12, 9), sites.clients[2][1])
    with pytest.raises(RuntimeError, match=r"Client 2 ended with an error: .*shapes cannot be multiplied"):
        sites.fit()
