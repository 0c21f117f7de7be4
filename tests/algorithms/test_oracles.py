"""Closed-form results of the algorithms, through ``Trainer.fit`` (closed forms O2 and O11)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.toys import Quadratic, fit_clients, fit_quadratic, quadratic_clients, quiet_trainer

from fl_lightning import FedAvg, RADFed, TensorDataModule


def test_o2_fedavg_iterates_are_biased_on_unequal_curvatures() -> None:
    clients = quadratic_clients(a=[1.0, 4.0], c=[0.0, 1.0])
    for rounds, expected in [(1, 0.46112), (2, 0.61519172), (3, 0.6666709334)]:
        weights = fit_quadratic(FedAvg(1.0, local_epochs=5), Quadratic(0.1), clients, rounds)
        assert float(weights) == pytest.approx(expected, abs=5e-11)
    weights = fit_quadratic(FedAvg(1.0, local_epochs=5), Quadratic(0.1, start=0.6925023465), clients, rounds=1)
    assert float(weights) == pytest.approx(0.6925023465, abs=5e-11)  # where it rests


# T_k(w) = c_k + r_k (w - c_k) with r = (0.9, 0.5): one gradient step with learning rate 1 and a = (0.1, 0.5)
CONTRACTIONS = {"a": [0.1, 0.5], "c": [0.0, 1.0]}


def test_o11_radfed_result_depends_on_who_received_which_model() -> None:
    results = []
    for seed in range(6):
        module = Quadratic(1.0)
        weights = float(fit_quadratic(RADFed(2, 2, seed=seed), module, quadratic_clients(**CONTRACTIONS), rounds=2))
        swapped = module.seen[:2] != module.seen[2:]
        assert weights == pytest.approx(0.475 if swapped else 0.375, abs=1e-15)
        results.append(swapped)
    assert set(results) == {True, False}


@pytest.mark.parametrize("evaluate", ["virtual", "aggregate"])
def test_radfed_shows_the_chosen_model_between_aggregations(evaluate: str) -> None:
    clients = quadratic_clients(**CONTRACTIONS)
    weights = fit_quadratic(RADFed(3, 2, evaluate=evaluate), Quadratic(1.0), clients, rounds=1)
    assert float(weights) == pytest.approx(0.25 if evaluate == "virtual" else 0.0, abs=1e-15)


def test_accumulated_gradients_are_applied_at_the_end_of_each_local_epoch() -> None:
    # three batches of one sample, two accumulated: steps on batches (1, 2) and (3), in each of two epochs
    sample = torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    module = Quadratic(lr=0.5)
    trainer = fit_clients(FedAvg(1, local_epochs=2), module, [sample], batch_size=1, accumulate_grad_batches=2)
    w = 0.0
    for _ in range(2):
        w -= 0.5 * ((w - 1.0) + (w - 2.0)) / 2
        w -= 0.5 * (w - 3.0) / 2
    assert trainer.global_step == 4
    assert float(module.w.detach()) == pytest.approx(w, abs=1e-15)


def test_a_checkpoint_that_is_only_tested_does_not_change_a_later_fit(tmp_path: Path) -> None:
    class Tested(Quadratic):
        def test_step(self, batch, batch_idx):
            self.log("w", float(self.w))

    clients = quadratic_clients(**CONTRACTIONS)
    data = TensorDataModule(clients=clients, test=clients[0], batch_size=None)
    reference = float(fit_quadratic(RADFed(3, 2, seed=1), Quadratic(1.0), clients, rounds=3))
    module, callback = Tested(1.0), RADFed(3, 2, seed=1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=data)
    [logged] = trainer.test(module, datamodule=data, ckpt_path=tmp_path / "first.ckpt", verbose=False)
    assert logged["w"] == pytest.approx(0.25)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, datamodule=data)
    assert float(module.w.detach()) == pytest.approx(reference, abs=1e-15)
