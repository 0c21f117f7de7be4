"""Orders, answers, kept vectors and places of values, as they travel and as they are kept; no client trains."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from helpers.sites import CLIENTS, Sites

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning._lightning.logs.client_log import LoggedMean
from fl_lightning.flower import FlowerClients, orders
from fl_lightning.flower import server as of_server
from fl_lightning.flower.kept import KeptVectors
from fl_lightning.flower.records import Parcel, from_records, message_to, received, to_records
from fl_lightning.flower.stand_ins import SamplesOfSite, ThisClient
from fl_lightning.flower.tensors import is_sparse, pack_places, unpack_places
from fl_lightning.parts import UniformSampler
from fl_lightning.parts.messages import Payload

#: Each field has a value of its own that is not its default.
ORDER: dict[str, Any] = {
    **{"run": "ab", "client": 1, "round": 3, "message": 2, "name": "Bonn", "num_clients": 4, "samples": 7},
    **{"all_samples": 20, "seed": 11, "local_epochs": 5, "local_steps": 6},
    **{"algorithm": "a", "trainer": "t", "data": "d"},
    **{"max_epochs": 9, "layout": "l", "first": "f", "options": "o", "is_look": True, "counted": (2, 1)},
    **{"changing": ("mean", "var"), "pull": 0.1, "weight_decay": 0.2},
}
ANSWER: dict[str, Any] = {
    **{"run": "ab", "client": 1, "round": 3, "message": 2, "has_model": True, "steps": 4, "numbers": 5, "values": 6},
    **{"bits_per_value": 8.5, "extra_bits": 7, "buffers": ("mean",), "changed": ("var",), "summed_lr": (0.1, 0.2)},
    **{"losses": (0.3,), "scores": (0.4,), "batches": 8, "all_steps": 9, "log_names": ("x", "y")},
    **{"log_means": (0.5, 0.6), "log_weights": (10, 11), "log_on_bar": (True, False)},
}


@pytest.fixture(autouse=True)
def in_a_run_of_flower() -> None:
    """Let messages be made, which Flower does in a run alone."""
    Sites(partial(FedAvg, 1.0))


@pytest.mark.parametrize(("kind", "values"), [(orders.Order, ORDER), (orders.Answer, ANSWER)])
def test_each_value_of_a_record_travels(kind: Any, values: dict[str, Any]) -> None:
    arrays = {"model": np.arange(6, dtype=np.float32).reshape(2, 3)}
    message = message_to(5, "train", kind(**values, arrays=arrays).to_parcel(), 60.0)
    metadata = message.metadata
    assert (metadata.dst_node_id, metadata.message_type, metadata.ttl) == (5, "train", 60.0)
    arrived = kind.from_parcel(received(message))
    assert {name: getattr(arrived, name) for name in values} == values
    assert np.array_equal(arrived.arrays["model"], arrays["model"])
    # What is empty does not travel, and comes back as it was.
    least = {name: values[name] for name in values if name not in vars(kind)}
    assert kind.from_parcel(from_records(to_records(kind(**least).to_parcel()))) == kind(**least)
    assert dict(received(message).values) == {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
        **{"form": orders.FORM, "version": received(message).values["version"]},
    }


def test_means_that_a_client_logged() -> None:
    assert orders.Answer(**ANSWER).logged == [LoggedMean("x", 0.5, 10, True), LoggedMean("y", 0.6, 11, False)]


def test_a_message_of_another_program_is_named() -> None:
    assert from_records(RecordDict()) is None
    message: Any = SimpleNamespace(content=RecordDict())
    with pytest.raises(ValueError, match="not one of fl-lightning's"):
        received(message)


def test_options_of_optimizers_travel_exactly() -> None:
    options: Any = [[{"lr": 0.1 + 0.2, "betas": (0.9, 0.999)}, {"lr": 1e-9, "foreach": None}], [{"momentum": True}]]
    assert orders.options_from_text(orders.options_to_text(options)) == options
    with pytest.raises(ValueError, match=r"must be numbers and strings .*Tensor is not JSON"):
        orders.options_to_text([[{"lr": torch.tensor(0.1)}]])


def test_what_both_sides_compare() -> None:
    given: dict[str, Any] = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    trainer = L.Trainer(**given, limit_train_batches=3, accelerator="cpu", logger=False, enable_checkpointing=False)
    assert orders.describe_trainer(trainer) == (
        "gradient_clip_val=0.5, gradient_clip_algorithm=None, accumulate_grad_batches=2, limit_train_batches=3, "
        "overfit_batches=0.0"
    )
    data = TensorDataModule(CLIENTS, batch_size=5, shuffle=False)
    assert orders.describe_data(data) == "batch_size=5, shuffle=False, drop_last=False"
    state = orders.state_arrays("schedule", {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])})
    assert list(state) == ["schedule/a", "schedule/b"]
    found = orders.state_of("schedule", {**state, "schedules/a": np.zeros(1)}, torch.device("cpu"))
    assert found == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_site_keeps_what_the_server_may_go_back_to(tmp_path: Path, in_folder: bool) -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    folder = tmp_path / "kept" if in_folder else None

    def kept(run: str = "ab-12") -> KeptVectors:
        return KeptVectors(context, folder, run, 3)

    def values(turn: tuple[int, ...]) -> dict[str, list[float]] | None:
        vectors = kept().after(turn)
        return None if vectors is None else {name: vector.tolist() for name, vector in vectors.items()}

    turns = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    for before, turn in zip([(), *turns], turns, strict=False):
        kept().keep(before, turn, {} if turn == (1, 0) else {"w": np.array(turn), "v": np.zeros(1)})
    # Of the last round all, and of earlier ones the last.
    found = {turn: values(turn) for turn in turns}
    assert found == {
        **{(0, 0): None, (0, 1): None, (1, 0): None},
        **{turn: {"w": [float(n) for n in turn], "v": [0.0]} for turn in ((1, 1), (2, 0))},
    }
    # The answers to the last round were not taken: it comes again, after the message (1, 1).
    kept().keep((1, 1), (2, 0), {"w": np.array([7])})
    assert (values((1, 1)), values((2, 0)), values(())) == ({"w": [1, 1], "v": [0]}, {"w": [7]}, {})
    kept().keep((2, 0), (2, 1), {})
    assert (values((1, 1)), values((2, 0)), values((2, 1))) == ({"w": [1, 1], "v": [0]}, {"w": [7]}, {})
    # Another fit knows nothing of it.
    assert kept("cd").after((2, 0)) is None
    if in_folder:
        assert [path.name for path in tmp_path.joinpath("kept").iterdir()] == ["client-3-ab12.npz"]


def test_places_of_values_have_the_fewest_bits() -> None:
    for of, places, num_bytes in ((1, [0], 0), (2, [1, 0, 1], 1), (5, [4, 0, 3], 2), (300, [299, 255, 256], 4)):
        packed = pack_places(np.array(places), of)
        assert (len(packed), unpack_places(packed, len(places), of).tolist()) == (num_bytes, places)
    assert unpack_places(pack_places(np.array([], dtype=np.int64), 5), 0, 5).tolist() == []
    with pytest.raises(ValueError, match="place 5 of 5"):
        unpack_places(pack_places(np.array([1, 5]), 6), 2, 5)


def test_a_message_is_sparse_if_it_has_fewer_values_and_their_places() -> None:
    whole = Payload(100)
    sparse = whole.sparse(10, of=np.int64(100))
    payloads = (sparse, whole, Payload(10), whole.sparse(100, of=100))
    assert [is_sparse(payload, whole) for payload in payloads] == [True, False, False, False]


def test_a_site_draws_or_scores_its_client_alone() -> None:
    sampler: Any = SimpleNamespace(score=lambda client: 2.5, sends_scores=True, scored_at="x")
    rng = np.random.default_rng(0)
    for is_look, drawn, scored in ((False, [1], []), (True, [], [1])):
        this = ThisClient(orders.Order(**{**ORDER, "is_look": is_look}), sampler)
        assert (this.draw(4, rng, np.arange(4)).tolist(), list(this.clients_to_score(rng, np.arange(4)))) == (
            drawn,
            scored,
        )
        assert (this.cohort_size(4), this.score(None), this.sends_scores, this.scored_at) == (1, 2.5, True, "x")  # type: ignore[arg-type]
        for scores in ({1: 0.25}, {}):
            this.take_scores(scores)
        assert this.scores == (0.25,)
    assert not ThisClient(orders.Order(**ORDER), UniformSampler(1)).sends_scores


def test_a_site_takes_the_others_for_about_equal() -> None:
    data = TensorDataModule([CLIENTS[0]])
    data.setup("fit")
    samples = SamplesOfSite(data.federated_samples, orders.Order(**{**ORDER, "samples": 9, "all_samples": 20}))
    # 11 samples for three others
    assert (samples.client_ids, samples.client_sizes.tolist()) == ([0, 1, 2, 3], [4, 9, 4, 3])
    assert len(samples.dataset_of("train", [1])) == len(samples.dataset_of("train")) == 9  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"samples of client 1 alone, asked for \[0\]"):
        samples.dataset_of("train", [0])


class Nobody:
    """A grid to which some nodes are connected, of which none is asked."""

    def __init__(self, *nodes: int) -> None:
        self.nodes = nodes
        self.errors: list[Any] = []

    def get_node_ids(self) -> tuple[int, ...]:
        return self.nodes

    def send_and_receive(self, messages: Any, timeout: float | None = None) -> list[Any]:
        return self.errors


def clients_of(names: list[str], num_clients: int | None = None) -> FlowerClients:
    clients = FlowerClients(Nobody(*range(len(names))), num_clients or len(names), timeout=0.5)
    clients._sites = {node: of_server._Site(name, 10 + node) for node, name in enumerate(names)}
    return clients


def test_clients_are_numbered_by_their_numbers_or_in_the_order_of_their_names() -> None:
    numbered = clients_of([str(number) for number in range(11)][::-1])
    numbered._meet()
    assert (numbered._names[-2:], numbered._sizes) == (["9", "10"], list(range(20, 9, -1)))
    named = clients_of(["b", "a", "c"])
    named._meet()
    assert (named._names, named._sizes) == (["a", "b", "c"], [11, 10, 12])
    with pytest.raises(ValueError, match=r"connected, \['a', 'b', 'c'\], got 2"):
        clients_of(["b", "a", "c"], 2)._meet()
    with pytest.raises(ValueError, match=r"numbered from 0 to 1, or have names, got \['0', 'a'\]"):
        clients_of(["a", "0"])._meet()
    # Those of a checkpoint come again.
    named.load_state_dict({"run": "r", "names": ["a", "b", "d"], "counted": {}})
    with pytest.raises(ValueError, match=r"are \['a', 'b', 'd'\], and \['a', 'b', 'c'\] are connected"):
        named._meet()
    # A node that has left is forgotten.
    named.grid = Nobody(0, 2)
    named._ask_new_nodes()
    assert named._nodes_by_name() == {"b": 0, "c": 2}


def test_a_server_waits_for_clients_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(of_server, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    clients = clients_of(["1", "0"], 3)
    clients.timeout = 2.5
    with pytest.raises(
        RuntimeError, match=r"After 2\.5 seconds the clients \['0', '1'\] are connected, and 3 are needed"
    ):
        clients._meet()
    assert now == [3.0]


def test_a_client_that_cannot_be_reached_is_told_and_one_with_an_error_ends_the_fit() -> None:
    clients = clients_of(["a", "b"])
    parcel = Parcel({"x": 1})
    questions = [message_to(node, "query", parcel, 1.0) for node in (0, 7)]

    def failed(code: int, node: int) -> Any:
        error = SimpleNamespace(code=code, reason="broken")
        return SimpleNamespace(has_error=lambda: True, error=error, metadata=SimpleNamespace(src_node_id=node))

    assert list(clients._replies([])) == []
    for code, node, name in ((3, 1, "b"), (4, 7, "at node 7"), (5, 0, "a")):
        clients.grid.errors = [failed(code, node)]  # type: ignore[attr-defined]
        with pytest.warns(UserWarning, match=f"Client {name} cannot be reached: broken"):
            assert list(clients._replies(questions)) == []
    clients.grid.errors = [failed(2, 1)]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="Client b ended with an error: broken"):
        list(clients._replies(questions))


def test_the_servers_state_knows_which_answers_it_took() -> None:
    clients = clients_of(["a", "b"])
    state = {"run": "r", "names": ["a", "b"], "counted": {0: [[0, 0], [1, 0], [1, 1]], 1: [[1, 0]]}}
    clients.load_state_dict(state)
    assert clients.state_dict() == state
    assert [clients.counted_before(0, turn) for turn in ((0, 0), (1, 0), (1, 1), (3, 0))] == [
        (),
        (0, 0),
        (1, 0),
        (1, 1),
    ]
    clients._forget_from((1, 1))
    assert clients.state_dict()["counted"] == {0: [[0, 0], [1, 0]], 1: [[1, 0]]}
    clients.reset()
    assert clients.state_dict()["counted"] == {} and clients.state_dict()["run"] != "r"
    assert clients.describe() == "on 2 machines of their own"


def test_the_servers_data_have_sizes_alone() -> None:
    data = clients_of(["a", "b"]).data_module(val=torch.utils.data.TensorDataset(*CLIENTS[0]), batch_size=3)
    data.setup("fit")
    assert (data.client_sizes.tolist(), data.batch_size, len(data.val_dataloader().dataset)) == ([10, 11], 3, 9)
    with pytest.raises(RuntimeError, match="samples of client 1 are at its site"):
        of_server._Elsewhere(1, 5)[0]
