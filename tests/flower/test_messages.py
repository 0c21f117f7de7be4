"""What travels, and what is not taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.common.serde import message_to_proto
from helpers.sites import CLIENTS, Net, Sites, arrays_of, net, simulate, values_of
from torch import Tensor

from fl_lightning import Ditto, FedAvg, FedPer, FedProx
from fl_lightning.flower import FlowerClients

#: All that an answer may hold besides arrays of the model.
OF_ANSWERS = {
    *("form", "version", "name", "samples"),
    *("run", "client", "round", "message", "has_model", "scores"),
    *("steps", "numbers", "values", "bits_per_value", "extra_bits"),
    *("buffers", "changed", "summed_lr", "losses"),
    *("batches", "all_steps", "log_names", "log_means", "log_weights", "log_on_bar"),
}


class Recording(Net):
    """Notes the loss of each sample."""

    losses: list[float] = []  # noqa: RUF012

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        with torch.no_grad():
            logits = self.head(self.body[:2](x))
            self.losses.extend(torch.nn.functional.cross_entropy(logits, y, reduction="none").tolist())
        return super().training_step(batch, batch_idx)


def recording() -> Net:
    torch.manual_seed(3)
    return Recording()


@pytest.mark.parametrize("make", [partial(FedPer, "head"), partial(Ditto, 0.5)])
def test_no_message_has_samples_losses_of_samples_or_tensors_that_a_client_keeps(make: Any) -> None:
    Recording.losses.clear()
    sites = Sites(partial(make, clients_per_round=1.0), recording)
    sites.fit()
    sent = [message_to_proto(message).SerializeToString() for message in (*sites.questions, *sites.replies)]
    assert len(sent) == 18

    secrets = [row.numpy().tobytes() for x, _ in CLIENTS for row in x]
    secrets += [np.array([loss], kind).tobytes() for loss in Recording.losses for kind in ("<f4", "<f8")]
    kept = [array for client in range(3) for array in sites.kept(100 + client).values()]
    assert len(kept) == 3
    # Three numbers in a row, such as a row of the head, are found wherever they are.
    secrets += [array[place : place + 3].tobytes() for array in kept for place in range(0, len(array) - 3)]
    found = [secret for secret in secrets for message in sent if secret in message]
    assert not found
    assert all(set(values_of(reply)) <= OF_ANSWERS for reply in sites.replies)
    assert all(set(arrays_of(reply)) <= {"model", "buffers", "values", "places"} for reply in sites.replies)


def change_value(name: str, value: Any) -> Callable[[Any, Any], None]:
    def change(values: Any, arrays: Any) -> None:
        values[name] = value

    return change


def shorten(values: Any, arrays: Any) -> None:
    from flwr.app import Array

    arrays["model"] = Array(arrays["model"].numpy()[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_value("version", "9.9"), "Install the same version on the server and at all sites"),
        (change_value("form", 0), "messages of form 0, this side .* form 3"),
        (change_value("name", "2"), "The message is for client 2, and this is client 1"),
        (change_value("layout", "x"), "The module's tensors must be the same on both sides"),
        (change_value("first", "x"), "The module must begin with the server's first weights"),
        (change_value("samples", 4), "Client 1 said it has 4 samples, and has 17 now"),
        (change_value("algorithm", "other"), "The algorithm must be the same on both sides, got LocalObjective"),
        (change_value("counted", [5, 0]), "asked to go on from round 6, and does not have what it kept then"),
        (shorten, r"array 'model' must have shape \(43,\) .* got \(42,\)"),
    ],
)
def test_a_message_of_another_run_version_or_shape_is_named(change: Any, words: str) -> None:
    sites = Sites(partial(FedPer, "body", clients_per_round=1.0), change=change)
    if change is shorten:
        sites.make = partial(FedAvg, 1.0)
    with pytest.raises(RuntimeError, match=f"(?s)Client 1 ended with an error: .*{words}"):
        sites.fit()


def test_an_answer_of_another_run_or_shape_is_named() -> None:
    class Forged(Sites):
        def answer(self, question: Any, context: Any) -> Any:
            reply = super().answer(question, context)
            if question.metadata.message_type == "train":
                change(reply.content["fl-lightning.values"], reply.content["fl-lightning.arrays"])
            return reply

    change: Any = change_value("run", "another")
    with pytest.raises(ValueError, match="answered for round 1 of the run another, and was asked for round 1 of"):
        Forged(partial(FedAvg, 1.0)).fit()
    change = shorten
    with pytest.raises(ValueError, match=r"array 'model' must have shape \(43,\)"):
        Forged(partial(FedAvg, 1.0)).fit()


def test_other_settings_of_the_algorithm_at_a_site_are_named() -> None:
    class Other(Sites):
        def answer(self, question: Any, context: Any) -> Any:
            self.make = partial(FedProx, 0.2, clients_per_round=1.0)
            return super().answer(question, context)

    with pytest.raises(RuntimeError, match=r"got Proximal\(mu=0.2\).* here and Proximal\(mu=0.1\).* at the server"):
        Other(partial(FedProx, 0.1, clients_per_round=1.0)).fit()


def test_other_arguments_of_the_trainer_at_a_site_are_named() -> None:
    with pytest.raises(
        RuntimeError, match=r"got gradient_clip_val=None.* here and gradient_clip_val=0.1.* at the server"
    ):
        Sites(partial(FedAvg, 1.0)).fit(gradient_clip_val=0.1)


def test_another_batch_size_at_a_site_is_named() -> None:
    sites = Sites(partial(FedAvg, 1.0), change=change_value("data", "batch_size=8, shuffle=True, drop_last=False"))
    with pytest.raises(RuntimeError, match=r"got batch_size=5, .* here and batch_size=8, .* at the server"):
        sites.fit()


def test_clients_may_have_names_and_are_numbered_in_their_order() -> None:
    make = partial(FedAvg, 1.0)
    named = Sites(make, names=("Aachen", "Bonn", "Celle")).fit()
    assert torch.equal(named.algorithm.server.model, simulate(make).algorithm.server.model)


def test_numbers_that_are_missing_or_given_twice_are_named() -> None:
    with pytest.raises(ValueError, match=r"numbered from 0 to 2, or have names, got \['0', '1', '3'\]"):
        Sites(partial(FedAvg, 1.0), names=(0, 1, 3)).fit()
    with pytest.raises(RuntimeError, match=r"the clients \['0', '1'\] are connected, and 3 are needed"):
        Sites(partial(FedAvg, 1.0), names=(0, 1, 1)).fit()
    with pytest.raises(RuntimeError, match="must have a number from 0 or a name, got ''"):
        Sites(partial(FedAvg, 1.0), names=(0, 1, "")).fit()


def test_clients_that_are_not_those_of_a_checkpoint_are_named() -> None:
    clients = FlowerClients(Sites(partial(FedAvg, 1.0)), num_clients=3)  # type: ignore[arg-type]
    clients.load_state_dict({"run": "r", "names": ["0", "1", "3"], "counted": {}})
    with pytest.raises(ValueError, match=r"are \['0', '1', '3'\], and \['0', '1', '2'\] are connected"):
        clients.data_module()


def test_a_site_with_the_data_of_several_clients_is_named() -> None:
    from fl_lightning import TensorDataModule
    from fl_lightning.flower import query_client

    class Two(Sites):
        def answer(self, question: Any, context: Any) -> Any:
            return query_client(question, context, TensorDataModule(CLIENTS))

    with pytest.raises(RuntimeError, match="A site has the data of one client, got a data module with 3"):
        Two(partial(FedAvg, 1.0), net).fit()


def test_a_site_whose_data_change_is_named() -> None:
    from fl_lightning import TensorDataModule
    from fl_lightning.data import ClientRotation
    from fl_lightning.flower import query_client

    class Changing(Sites):
        def answer(self, question: Any, context: Any) -> Any:
            return query_client(question, context, TensorDataModule(CLIENTS[:1], changes=ClientRotation(1)))

    with pytest.raises(RuntimeError, match="A site's data cannot have `changes`"):
        Changing(partial(FedAvg, 1.0), net).fit()
