"""What real clients cannot do ends with a line that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler

pytest.importorskip("flwr")

from helpers.sites import CLIENTS, VALIDATION, Make, Net, Sites, net, trainer

from fl_lightning import (
    ExamplePrivacy,
    FedAsync,
    FedAvg,
    FedDyn,
    HeteroFL,
    MimeLite,
    Participation,
    Scaffold,
    TensorDataModule,
)
from fl_lightning.diagnostics import CentralTwin
from fl_lightning.flower import FlowerClients
from fl_lightning.parts import (
    QSGD,
    Clip,
    Exchange,
    LowRank,
    PowerOfChoice,
    RandomK,
    SecureAggregation,
    SignSGD,
    TopK,
    UniformSampler,
)


class Own(Exchange):
    """Of a user, who says nothing of other machines."""


class OwnScores(UniformSampler):
    """Of a user, whose clients send scores."""

    def score(self, client: Any) -> float:
        return client.loss()


class OwnAtClient(Exchange):
    """Of a user, who says that it works at the client."""

    runs_at = "client"

    def upload(self, result: Any) -> Any:
        return result.with_delta(0.5 * result.delta)


def with_exchange(*exchange: Exchange, make: Make = FedAvg) -> Make:
    return lambda **more: make(clients_per_round=1.0, exchange=list(exchange), **more)


UNIFORM = partial(FedAvg, weighting="uniform", buffers="server")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(FedAsync, clients_per_round=2), "on a virtual clock.* Give a synchronous algorithm"),
        (partial(FedAvg, participation=Participation(dropout=0.5)), "`participation` imagines failures"),
        (partial(FedAvg, sampler=OwnScores(2)), 'write `runs_at = "client"` in the body of the class OwnScores'),
        (with_exchange(Own()), 'write `runs_at = "client"` in the body of the class Own'),
        (partial(Scaffold, clients_per_round=1.0, option=1), r"Give Scaffold\(option=2\)"),
        (partial(MimeLite, clients_per_round=1.0), "GradientFirst.* has no messages .* take another algorithm"),
        (partial(HeteroFL, [1.0], clients_per_round=1.0), "SubModels.* has no messages .* take another algorithm"),
        (with_exchange(Clip(1.0), make=Scaffold), "cannot have Clip"),
        (with_exchange(Clip(1.0), make=partial(FedDyn, 0.1)), "cannot have Clip"),
        (with_exchange(TopK(0.2, link="down")), 'Give `link="up"`'),
        (with_exchange(QSGD(4)), "QSGD.* has no messages .* Give TopK"),
        (with_exchange(SignSGD()), "SignSGD.* has no messages .* Give TopK"),
        (with_exchange(RandomK(0.2)), "RandomK.* has no messages .* Give TopK"),
        (with_exchange(LowRank(1)), "LowRank.* has no messages .* Give TopK"),
        (with_exchange(SecureAggregation(1.0), make=UNIFORM), "SecureAggregation.* has no messages .* Leave it out"),
        (partial(FedAvg, continue_epochs=True, local_steps=2), "`continue_epochs=True` is kept by the server"),
    ],
)
def test_what_real_clients_cannot_do_is_named_before_they_are_asked(make: Make, words: str) -> None:
    sites = Sites(make)
    with pytest.raises(ValueError, match=f"FlowerClients: .*{words}"):
        sites.fit()
    assert all(message.metadata.message_type == "query" for message in sites.questions)


def test_a_part_of_ones_own_works_at_the_client_if_it_says_so() -> None:
    from helpers.sites import simulate

    make = with_exchange(OwnAtClient())
    assert torch.equal(Sites(make).fit().algorithm.server.model, simulate(make).algorithm.server.model)


def test_local_buffers_are_named_where_there_are_buffers() -> None:
    make = partial(FedAvg, 1.0, buffers="local")
    with pytest.raises(ValueError, match='`buffers="local"` shows the mean'):
        Sites(make, partial(net, norm=True)).fit()
    Sites(make).fit(rounds=1)


class BySteps(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByHand(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class RateInTensor(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=torch.tensor(0.1))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (BySteps, "Give interval='epoch'"),
        (ByHand, "Use automatic optimisation"),
        (RateInTensor, "Give learning rates as numbers, not tensors"),
    ],
)
def test_modules_that_need_the_server_inside_of_a_round_are_named(module: Callable[[], Net], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sites(partial(FedAvg, 1.0), module).fit()


class Scaled(Net):
    """Its loss is divided by a number that counts what all clients do."""

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) / (1 + getattr(self.trainer, self.number))


def by_score(**more: Any) -> FedAvg:
    return FedAvg(sampler=PowerOfChoice(2, 3), **more)


# A score is a loss before the draw.
@pytest.mark.parametrize("make", [partial(FedAvg, 1.0), by_score])
@pytest.mark.parametrize("number", ["global_step", "num_training_batches", "estimated_stepping_batches"])
def test_losses_that_read_numbers_of_all_clients_are_named(number: str, make: Make) -> None:
    def module() -> Net:
        torch.manual_seed(3)
        return Scaled(number)

    with pytest.raises(RuntimeError, match=f"`{number}` belongs to all clients together.* Read `current_epoch`"):
        Sites(make, module).fit()


class WatchesClients(L.Callback):
    def on_client_end(self, *given: Any) -> None: ...


class ChangesGradients(L.Callback):
    def on_after_backward(self, *given: Any) -> None: ...


@pytest.mark.parametrize(
    ("callback", "hook"), [(WatchesClients, "on_client_end"), (ChangesGradients, "on_after_backward")]
)
def test_callbacks_that_are_called_where_clients_train_are_named_at_the_server(callback: Any, hook: str) -> None:
    words = rf"{callback.__name__} has `{hook}`.* Give the callback to `train_client\(callbacks=\[...\]\)`"
    with pytest.raises(ValueError, match=words):
        Sites(partial(FedAvg, 1.0)).fit(callbacks=[callback()])


def test_what_needs_the_samples_of_clients_at_the_server_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"samples of client \d are at its site.* Leave out .* such as CentralTwin"):
        Sites(partial(FedAvg, 1.0)).fit(callbacks=[CentralTwin()])


def test_a_schedule_of_accumulation_is_named() -> None:
    with pytest.raises(ValueError, match="Give `accumulate_grad_batches` to both"):
        Sites(partial(FedAvg, 1.0)).fit(callbacks=[GradientAccumulationScheduler({1: 2})])


def test_privacy_of_samples_is_named_on_both_sides() -> None:
    def privacy() -> ExamplePrivacy:
        return ExamplePrivacy(clip=1.0, noise_multiplier=1.0, delta=1e-3)

    with pytest.raises(ValueError, match=r"Give `exchange=LocalDifferentialPrivacy\(...\)`"):
        Sites(partial(FedAvg, 1.0)).fit(callbacks=[privacy()])
    with pytest.raises(RuntimeError, match=r"Client 1 .*Give `exchange=LocalDifferentialPrivacy\(...\)`"):
        Sites(partial(FedAvg, 1.0), options={"callbacks": [privacy()]}).fit()


def test_data_of_other_sizes_are_named() -> None:
    clients = FlowerClients(Sites(partial(FedAvg, 1.0)), num_clients=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"clients of \[9, 17\] samples, and the connected ones have \[9, 17, 12\]"):
        trainer(FedAvg(1.0, executor=clients)).fit(net(), datamodule=TensorDataModule(CLIENTS[:2]))


def test_validation_by_models_of_the_clients_own_is_named() -> None:
    clients = FlowerClients(Sites(partial(FedAvg, 1.0)), num_clients=3)  # type: ignore[arg-type]
    from fl_lightning import FedPer

    data = TensorDataModule(CLIENTS, val=[VALIDATION] * 3)
    with pytest.raises(ValueError, match="clients are evaluated by models of their own"):
        trainer(FedPer("head", executor=clients)).fit(net(), datamodule=data)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_clients": 0}, "`num_clients`"),
        ({"num_clients": 2.5}, "`num_clients`"),
        ({"num_clients": 2, "timeout": 0.0}, "`timeout`"),
    ],
)
def test_arguments_out_of_their_range_are_named(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FlowerClients(Sites(partial(FedAvg, 1.0)), **given)
