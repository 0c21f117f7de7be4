"""A fit that has no round left keeps what it resumed from; one that fails before its first round leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import Tensor, nn

from fl_lightning import FedAvg
from fl_lightning.diagnostics import VirtualTime
from fl_lightning.parts import DifferentialPrivacy, VirtualClock
from fl_lightning.testing.fits import fit


def end(callbacks: list[Callback], rounds: int, ckpt_path: Path | None = None) -> Tensor:
    """Return the weights after so many rounds."""
    quiet_trainer(max_epochs=rounds, callbacks=callbacks).fit(net := Net(), datamodule=data(), ckpt_path=ckpt_path)
    return nn.utils.parameters_to_vector(net.parameters())


@pytest.mark.parametrize("name", ["RADFed", "FedAsync"])
def test_a_checkpoint_after_it_goes_on_as_the_first(tmp_path: Path, name: str) -> None:
    idle_after(tmp_path, lambda: [ALGORITHMS[name](seed=1)])
    ends = [end([ALGORITHMS[name](seed=1)], 5, tmp_path / f"{path}.ckpt") for path in ("first", "idle")]
    assert torch.equal(*ends)


def test_callbacks_see_monitored_values_after_it(tmp_path: Path) -> None:
    def run(rounds: int, name: str, resume: str | None = None) -> float:
        # validated after rounds 2 and 4, looked at after each
        stopping = EarlyStopping("val_loss", patience=9, check_on_train_epoch_end=True, strict=resume is not None)
        options: dict[str, Any] = {"ckpt_path": resume and tmp_path / resume, "check_val_every_n_epoch": 2}
        trainer = fit(FedAvg(4, seed=1), Net(), data(), rounds, stopping, **options)
        trainer.save_checkpoint(tmp_path / name)
        return float(trainer.callback_metrics.get("val_loss", 0.0))

    after_two = run(2, "first.ckpt")
    run(2, "second.ckpt", "first.ckpt")
    assert run(3, "third.ckpt", "second.ckpt") == after_two > 0


def idle_after(tmp_path: Path, callbacks: Callable[[], list[Callback]]) -> tuple[list[Any], list[Any]]:
    """Return the callbacks of a fit, and those of one that resumes when it is done."""
    first, idle = callbacks(), callbacks()
    path = tmp_path / "first.ckpt"
    fit(first[0], Net(), data(), 2, *first[1:]).save_checkpoint(path)
    fit(idle[0], Net(), data(), 2, *idle[1:], ckpt_path=path).save_checkpoint(tmp_path / "idle.ckpt")
    return first, idle


def test_privacy_spent_and_virtual_time_are_known_after_it_and_the_callback_begins_anew(tmp_path: Path) -> None:
    def callbacks() -> list[Callback]:
        privacy = DifferentialPrivacy(clip=1.0, noise_multiplier=1.0, delta=1e-3)
        federated = FedAvg(1.0, exchange=privacy, weighting="uniform", buffers="server", seed=1)
        return [federated, VirtualTime(VirtualClock(2.0))]

    first, idle = idle_after(tmp_path, callbacks)
    assert first[0].exchange.spent == idle[0].exchange.spent > 0
    assert first[1].now == idle[1].now > 0
    assert torch.equal(end(idle[:1], 1), end(callbacks()[:1], 1))


@pytest.mark.parametrize("name", ["RADFed", "Scaffold"])
def test_the_same_callback_begins_anew_after_a_fit_that_failed_before_its_first_round(
    tmp_path: Path, name: str
) -> None:
    class Fails(Net):
        def on_fit_start(self) -> None:
            raise ValueError("not yet")

    fit(ALGORITHMS[name](seed=1), Net(), data(), 2).save_checkpoint(tmp_path / "first.ckpt")
    failed = ALGORITHMS[name](seed=1)
    with pytest.raises(ValueError, match="not yet"):
        fit(failed, Fails(), data(), 4, ckpt_path=tmp_path / "first.ckpt")
    assert torch.equal(end([failed], 2), end([ALGORITHMS[name](seed=1)], 2))
