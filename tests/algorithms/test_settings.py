"""What users give and set: samplers and their clients, parts of the wrong kind, executors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Fixed, Quadratic, fit_quadratic, quadratic_clients
from helpers.watching import Results
from lightning.pytorch.callbacks import Callback

from fl_lightning import AggregationCallback, FedAvg, QFedAvg, Scaffold
from fl_lightning.algorithms.resuming import check_optimizers
from fl_lightning.parts import ImportanceSampler, UniformSampler

# client k's target is k, so that `module.seen` says who trained
SIX = quadratic_clients([1.0] * 6, [float(client) for client in range(6)])


class Set(Callback):
    """Sets something of the aggregation callback when a round has ended."""

    def __init__(self, after_round: int, **values: Any) -> None:
        self.after_round, self.values = after_round, values

    def on_round_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == self.after_round:
            for name, value in self.values.items():
                setattr(trainer.callbacks[0], name, value)


def clients_of_rounds(callback: AggregationCallback, rounds: int, *others: Callback) -> list[list[int]]:
    """Return who trained in each round, sorted."""
    results = Results()
    fit_quadratic(callback, Quadratic(1.0), SIX, rounds, results, *others)
    return [sorted(each.client for each in results.seen if each.task.round == number) for number in range(rounds)]


# ---- set later ----


def test_another_number_of_clients_counts_from_the_next_fit_and_from_the_next_round() -> None:
    callback = FedAvg(1)
    assert callback.clients_per_round == 1
    callback.clients_per_round = 2
    assert callback.clients_per_round == 2
    rounds = clients_of_rounds(callback, 4, Set(1, clients_per_round=0.5))
    assert [len(clients) for clients in rounds] == [2, 2, 3, 3]
    assert callback.clients_per_round == 0.5
    assert callback.algorithm.models_sent == 2 * (2 + 2 + 3 + 3)


def test_another_sampler_counts_from_the_next_fit_and_from_the_next_round() -> None:
    callback = FedAvg(1)
    callback.sampler = Fixed([1, 3])
    rounds = clients_of_rounds(callback, 4, Set(1, sampler=Fixed([0, 2, 5], 3)))
    assert rounds == [[1, 3], [1, 3], [0, 2, 5], [0, 2, 5]]
    assert callback.clients_per_round is None


def test_a_sampler_may_change_its_own_number() -> None:
    class Growing(UniformSampler):
        def on_round_start(self, round_index: int) -> None:
            self.clients_per_round = round_index + 1

    callback = FedAvg(sampler=Growing(1))
    assert [len(clients) for clients in clients_of_rounds(callback, 3)] == [1, 2, 3]
    callback.sampler.clients_per_round = 6
    callback.take_settings()
    assert callback.clients_per_round == 6


def test_a_number_keeps_how_the_sampler_rounds_and_does_not_replace_a_sampler_of_another_class() -> None:
    class Own(UniformSampler):
        """Draws as its base does, but the library does not know that."""

    callback = FedAvg(sampler=UniformSampler(0.3, rounding="ceil"))
    callback.clients_per_round = 0.7
    callback.take_settings()
    assert (callback.sampler.clients_per_round, callback.sampler.rounding) == (0.7, "ceil")
    assert "sampler" not in repr(callback)

    callback = FedAvg(sampler=Own(2))
    assert "sampler=" in repr(callback)
    callback.clients_per_round = 3
    with pytest.raises(AttributeError, match="sampler"):
        callback.take_settings()


def test_a_user_s_sampler_may_say_which_number_it_draws() -> None:
    class Halves(Fixed):
        number_or_fraction = 0.5

    sampler = Halves([0, 2, 5], 3)
    assert FedAvg(sampler=sampler).clients_per_round == 0.5
    assert FedAvg(0.5, sampler=sampler).sampler is sampler
    with pytest.raises(ValueError, match="clients_per_round"):
        FedAvg(3, sampler=sampler)
    assert FedAvg(sampler=Fixed([0, 2, 5], 3)).clients_per_round is None


def test_a_sampler_that_needs_scores_may_come_later() -> None:
    # the gradient of client k at w is w - k; nobody has a score before the sampler comes
    sampler = ImportanceSampler(2, gamma=0.5)
    callback = FedAvg(1, seed=1)
    rounds = clients_of_rounds(callback, 4, Set(1, sampler=sampler))
    assert [len(clients) for clients in rounds] == [1, 1, 2, 2]
    assert np.isfinite(sampler.scores).all()
    # a model has one number, and a score is one more; all 6 clients get the model to send their first score, and two
    # of them train it
    traffic = callback.algorithm.traffic
    assert (traffic.values_down, traffic.values_up) == (1 + 1 + 6 + 2, 1 + 1 + 6 + 2 * 2 + 2 * 2)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("clients_per_round", 0, ValueError), ("sampler", 3, TypeError), ("local_epochs", 0, ValueError)],
)
def test_what_cannot_be_is_refused_before_the_next_round(name: str, value: Any, error: type[Exception]) -> None:
    callback = FedAvg(2)
    with pytest.raises(error, match=name):
        clients_of_rounds(callback, 3, Set(1, **{name: value}))
    assert callback.algorithm.models_sent == 2 * 2 * 2


def test_a_copy_of_a_callback_trains_with_the_same_settings() -> None:
    callback = FedAvg(2, executor="vectorized", clients_at_once=3, seed=5)
    copy = pickle.loads(pickle.dumps(callback))
    assert (repr(copy), copy._executor.clients_at_once, copy.settings.run_seed) == (repr(callback), 3, 5)


def test_each_optimizer_of_a_checkpoint_is_compared() -> None:
    sgd = torch.optim.SGD([torch.zeros(1)])
    with pytest.raises(ValueError, match=r"state of SGD, Adam, and .* returns SGD, SGD,"):
        check_optimizers({"optimizers": [("SGD", {}), ("Adam", {})]}, [sgd, sgd])


class OfDicts(Quadratic):
    """Returns its loss in a dict."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx), "size": len(batch[0])}


@pytest.mark.parametrize("make", [lambda: QFedAvg(1.0, 1.0), lambda: Scaffold(1.0, option=1)])
def test_a_loss_in_a_dict_is_that_loss(make: Any) -> None:
    ends = [fit_quadratic(make(), kind(0.3), SIX, 2) for kind in (Quadratic, OfDicts)]
    assert ends[0] == ends[1] != 0
