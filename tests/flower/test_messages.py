"""What travels, and what is not taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array
from flwr.common.serde import message_to_proto
from helpers.sites import CLIENTS, Net, Sites, arrays_of, net, simulate, values_of
from helpers.written import assert_as_in, told
from torch import Tensor

from fl_lightning import Ditto, FedAvg, FedPer, FedProx, TensorDataModule, __version__
from fl_lightning.data import ClientRotation
from fl_lightning.flower import query_client, train_client

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


@pytest.mark.parametrize("make", [partial(FedPer, "head"), partial(Ditto, 0.5)])
def test_no_message_has_samples_losses_of_samples_or_tensors_that_a_client_keeps(make: Any) -> None:
    Recording.losses.clear()
    sites = Sites(partial(make, clients_per_round=1.0), partial(net, Recording))
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


def changed(values: dict[str, Any] | None = None, cut: bool = False) -> Callable[[Any, Any], None]:
    """Return a function that gives a message other values, or a shorter model."""

    def change(of_message: Any, arrays: Any) -> None:
        for name, value in (values or {}).items():
            of_message[name] = value
        if cut:
            arrays["model"] = Array(arrays["model"].numpy()[:-1])

    return change


class Forged(Sites):
    """Sites whose answers are changed."""

    def answer(self, question: Any, context: Any) -> Any:
        change = self.change
        self.change = None
        reply = super().answer(question, context)
        self.change = change
        if question.metadata.message_type == "train":
            change(reply.content["fl-lightning.values"], reply.content["fl-lightning.arrays"])
        return reply


class Other(Sites):
    """Sites with another setting of the algorithm."""

    def answer(self, question: Any, context: Any) -> Any:
        self.make = partial(FedProx, 0.2, clients_per_round=1.0)
        return super().answer(question, context)


@dataclass
class Asked(Sites):
    """Sites with other data modules."""

    data: Any = None

    def answer(self, question: Any, context: Any) -> Any:
        return query_client(question, context, self.data)


ALL = partial(FedAvg, 1.0)
KEEPING = partial(FedPer, "body", clients_per_round=1.0)
SITES = [
    Sites(KEEPING, change=changed({"form": 0})),
    Sites(KEEPING, change=changed({"version": "9.9"})),
    *(Sites(KEEPING, change=changed({name: "x"})) for name in ("name", "layout", "first", "algorithm", "data")),
    Sites(KEEPING, change=changed({"samples": 4})),
    Sites(KEEPING, change=changed({"counted": [5, 0]})),
    Sites(ALL, change=changed(cut=True)),
    Forged(ALL, change=changed({"run": "another"})),
    Forged(ALL, change=changed({"round": 4})),
    Forged(ALL, change=changed({"message": 4})),
    Forged(ALL, change=changed(cut=True)),
    Other(partial(FedProx, 0.1, clients_per_round=1.0)),
    Sites(ALL, names=(0, 1, "")),
    Sites(ALL, names=(0, 1, True)),
    Sites(ALL, names=(0, 1, 2.5)),
    Sites(ALL, options={"logger": False, "max_epochs": 3}),
    Asked(ALL, data=TensorDataModule(CLIENTS)),
    Asked(ALL, data=TensorDataModule(CLIENTS[:1], changes=ClientRotation(1))),
]


def test_a_message_of_another_run_version_shape_or_setting_is_named(tmp_path: Path) -> None:
    lines = [told(sites.fit, tmp_path) for sites in SITES]
    lines.append(told(partial(Sites(ALL).fit, gradient_clip_val=0.1), tmp_path))
    lines.append(told(partial(train_client, None, None, None, None, 3), tmp_path))
    shown = [re.sub("[0-9a-f]{16,}", "DIGEST", line.replace(__version__, "VERSION")) for line in lines]
    assert_as_in(Path(__file__).with_suffix(".txt"), shown, tmp_path)


def test_infinite_values_of_a_site_are_left_out() -> None:
    def spoil(of_message: Any, arrays: Any) -> None:
        arrays["model"] = Array(arrays["model"].numpy() * np.inf)

    report = Forged(ALL, change=spoil).fit(rounds=1).algorithm.report
    assert (report.reported, sorted(report.left_out), report.dropped) == ([], [0, 1, 2], 0)


def test_clients_may_have_names_and_are_numbered_in_their_order() -> None:
    named = Sites(ALL, names=("Aachen", "Bonn", "Celle")).fit()
    assert torch.equal(named.algorithm.server.model, simulate(ALL).algorithm.server.model)
