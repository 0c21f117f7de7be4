"""Every algorithm of ``helpers/algorithms.py`` keeps one contract; a new one is a line there.

One fit serves all aspects. An aspect that fails is reported beside the others.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers import algorithms
from helpers.algorithms import ALGORITHMS, ONE_BY_ONE, Net, data, first_of_each, one_in
from helpers.forking import in_child
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

import fl_lightning as fl
from fl_lightning import _public, parts
from fl_lightning.testing.check_part import PartChecks
from fl_lightning.testing.fits import Trace, content, different, distance, fit

ROUNDS = 3
OWN_FUNCTIONS = {"FedProx", "Scaffold-1", "FedAsync"}  # a function without a name is neither pickled nor shown


def make(name: str, executor: str = "sequential") -> Any:
    return ALGORITHMS[name](seed=1, executor=executor)


@pytest.fixture(scope="module")
def checks_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PartChecks]:
    """Return the checks of an algorithm, whose tests share a fit to which nothing happens."""

    def checks(name: str) -> PartChecks:
        return PartChecks(lambda: make(name), Net, lambda: data(8), ROUNDS, tmp_path_factory.mktemp("checks"))

    return cache(checks)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # files of clients' vectors


@pytest.mark.parametrize("name", first_of_each(3))
def test_an_algorithm(name: str, checks_of: Callable[[str], PartChecks], subtests: pytest.Subtests) -> None:
    checks = checks_of(name)
    with subtests.test("its results are numbers"):
        checks.trains()
    with subtests.test("broken off in mid-round and resumed, it ends with the same bits"):
        assert checks.resumes().was_made
    with subtests.test("its text makes it again"):
        text = repr(make(name))
        # long lists, and data, are cut
        if name not in OWN_FUNCTIONS and "clock=" not in text and "loader=" not in text:
            assert repr(eval(text, {**vars(parts), **vars(_public), **vars(algorithms)})) == text


@pytest.mark.parametrize("name", one_in(24))
def test_other_fits_of_an_algorithm(
    name: str, checks_of: Callable[[str], PartChecks], subtests: pytest.Subtests
) -> None:
    whole, expected = checks_of(name).whole
    rounds = whole.rounds
    with subtests.test("a second fit of its callback is as the first, of a pickled copy too"):
        again, trace = expected.callbacks[0], Trace()
        fit(again if name in OWN_FUNCTIONS else pickle.loads(pickle.dumps(again)), Net(), data(8), 2, trace)
        assert distance(trace.rounds[1], rounds[1]) == 0
    with subtests.test("stacked clients train as one after the other"):
        trainer = fit(make(name, "vectorized"), net := Net(), data(8), ROUNDS)
        assert (trainer.fit_loop.executor.cause is not None) == (name in ONE_BY_ONE)
        assert distance(net.state_dict(), rounds[-1]) < 1e-10
        assert trainer.global_step == expected.global_step
        logged = {key: float(value) for key, value in trainer.callback_metrics.items() if key != "train_loss_step"}
        reference = {key: float(expected.callback_metrics[key]) for key in logged}
        assert logged == pytest.approx(reference, rel=1e-6, abs=1e-6)


class Kill(Callback):
    """Dies without a chance to clean up, in the middle of a round."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", one_in(40))
def test_in_other_processes(
    name: str, checks_of: Callable[[str], PartChecks], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    checks = checks_of(name)
    with subtests.test("killed in mid-round and resumed, it ends with the same bits"):
        last = tmp_path / "last.ckpt"
        keep = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
        killed = in_child(fit, make(name), Net(), data(8), ROUNDS, keep, Kill(), enable_checkpointing=True)
        assert killed == -signal.SIGKILL
        resumed = fit(make(name), Net(), data(8), ROUNDS, ckpt_path=last)
        assert different(content(resumed, tmp_path), checks.whole_content) == []
    with subtests.test("two processes end as one does"):
        assert checks.two_processes().was_made


# ---- reductions ----

ALL: dict[str, Any] = {"weighting": "uniform", "buffers": "server"}
NOISELESS: dict[str, Any] = {"noise_multiplier": 0.0, "delta": 1e-5}
#: An algorithm with the setting at which it is FedAvg, the options of that FedAvg, and how far they may be apart.
REDUCTIONS: dict[str, tuple[Callable[[], fl.AggregationCallback], dict[str, Any], float]] = {
    "Federated": (lambda: fl.Federated(4, seed=5), {}, 0),
    "FedProx": (lambda: fl.FedProx(0.0, 4, seed=5), {}, 0),
    "MOON": (lambda: fl.MOON(0.0, 4, seed=5), {}, 0),
    "FedLC": (lambda: fl.FedLC(0.0, 4, seed=5), {}, 0),
    "FedNTD": (lambda: fl.FedNTD(0.0, 4, seed=5), {}, 0),
    "FedDecorr": (lambda: fl.FedDecorr(0.0, 4, seed=5), {}, 0),
    "FedSAM": (lambda: fl.FedSAM(0.0, 4, seed=5), {}, 0),
    "FedProto": (lambda: fl.FedProto(0.0, 4, seed=5), {"exchange": parts.PersonalParameters("*")}, 0),
    "FedAvgM": (lambda: fl.FedAvgM(0.0, clients_per_round=4, seed=5), {}, 1e-14),
    "FedNova with as many steps": (
        lambda: fl.FedNova(4, local_steps=3, buffers="server", seed=5), {"local_steps": 3, "buffers": "server"}, 1e-14,
    ),
    "QFedAvg": (lambda: fl.QFedAvg(0.0, 4, buffers="server", seed=5), ALL, 1e-14),
    "RADFed": (lambda: fl.RADFed(1, 4, seed=5), {"weighting": "uniform"}, 0),
    "RADFed, aggregates": (lambda: fl.RADFed(1, 4, evaluate="aggregate", seed=5), {"weighting": "uniform"}, 0),
    "RADFedp": (lambda: fl.RADFed(1, 4, local=parts.Proximal(0.0), seed=5), {"weighting": "uniform"}, 0),
    "RADFedm": (lambda: fl.RADFed(1, 4, server=parts.Mixing(1.0), seed=5), {"weighting": "uniform"}, 0),
    "HierFAVG of one group": (lambda: fl.HierFAVG(1, 1, 4, seed=5), {}, 0),
    "HierFAVG of all clients": (lambda: fl.HierFAVG(3, 1, seed=5), {"clients_per_round": 6}, 1e-14),
    "all clients' last models": (lambda: fl.FedAvg(6, partial="stale", seed=5), {"clients_per_round": 6}, 1e-14),
    "all clients' models": (lambda: fl.FedAvg(6, partial="current", seed=5), {"clients_per_round": 6}, 1e-14),
    "FedBuff of all": (
        lambda: fl.FedBuff(6, 6, wait_for_flush=True, staleness="constant", speeds=1, seed=5, buffers="server"),
        {"clients_per_round": 6, **ALL},
        1e-12,
    ),
    "private without noise": (
        lambda: fl.FedAvg(4, exchange=parts.DifferentialPrivacy(float("inf"), **NOISELESS), seed=5, **ALL), ALL, 0,
    ),
    "nothing left out": (lambda: fl.FedAvg(4, exchange=[parts.TopK(1.0), parts.RandomK(1.0)], seed=5), {}, 1e-14),
    "nothing trimmed": (lambda: fl.FedAvg(4, aggregation=parts.TrimmedMean(0), seed=5, buffers="server"), ALL, 1e-14),
}  # fmt: skip


class Plain(Net):
    """Steps of plain SGD, as FedNova and q-FedAvg take them."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def end(callback: fl.AggregationCallback) -> dict[str, Tensor]:
    fit(callback, net := Plain(), data(8), 3)
    return net.state_dict()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_algorithm_is_fedavg_at_its_neutral_setting(name: str) -> None:
    algorithm, options, apart = REDUCTIONS[name]
    assert distance(end(algorithm()), end(fl.FedAvg(**{"clients_per_round": 4, "seed": 5, **options}))) <= apart


def test_the_seed_and_nothing_else_decides_what_is_drawn() -> None:
    L.seed_everything(11, verbose=False)
    first = end(fl.RADFed(2, 3))
    torch.rand(1000)
    assert distance(end(fl.RADFed(2, 3, seed=11)), first) == 0
    torch.manual_seed(999)
    assert distance(end(fl.RADFed(2, 3, seed=6)), first) > 0
