"""A parameter is trained if an optimizer holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import clients_of
from helpers.toys import fit_clients
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import IFCA, AggregationCallback, FedAvg, Federated, FedPer, FedSAM, Scaffold, parts
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.diagnostics import Communication
from fl_lightning.testing.fits import distance

Make = Callable[[], AggregationCallback]


class HeadOnly(L.LightningModule):
    """A body and a head, of which the optimizer holds the head alone."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Linear(4, 6).requires_grad_(not frozen)
            self.head = nn.Linear(6, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.body(batch[0]))), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.head.parameters(), lr=0.2)


def exchanging(exchange: parts.Exchange) -> FedAvg:
    return FedAvg(1.0, weighting="uniform", exchange=exchange)


ALGORITHMS: dict[str, Make] = {
    "FedAvg": lambda: FedAvg(1.0),
    "privacy": lambda: exchanging(parts.DifferentialPrivacy(clip=0.1, noise_multiplier=1.0, delta=1e-3)),
    "local privacy": lambda: exchanging(parts.LocalDifferentialPrivacy(clip=0.1, noise_multiplier=0.5, delta=1e-3)),
    "signs": lambda: exchanging(parts.SignSGD()),
    "attack": lambda: exchanging(parts.GaussianAttack(0.4)),
    "clipping": lambda: exchanging(parts.Clip(0.05)),
    "TopK": lambda: exchanging(parts.TopK(0.2)),
    "TopK down": lambda: exchanging(parts.TopK(0.2, link="down")),
    "weight decay of the server": lambda: Federated(
        clients_per_round=1.0, server=parts.TorchServer(torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    ),
    "FedSAM": lambda: FedSAM(0.5, clients_per_round=1.0),
    "SCAFFOLD": lambda: Scaffold(1.0),
    "IFCA": lambda: IFCA(2, clients_per_round=1.0),
    "FedPer": lambda: FedPer("head.bias", clients_per_round=1.0),
    "a personal body": lambda: exchanging(parts.PersonalParameters("body")),
}


@pytest.mark.parametrize("make", ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_what_no_optimizer_holds_is_as_if_it_were_frozen(make: Make) -> None:
    found: list[tuple[dict[str, Tensor], dict[str, float]]] = []
    for frozen in (True, False):
        communication = Communication()
        fit_clients(make(), module := HeadOnly(frozen=frozen), clients_of(8, 8, 8), 2, communication, batch_size=4)
        found.append((module.state_dict(), communication.values))
    (expected, sent), (state, values) = found
    assert distance(state, expected) == 0.0
    assert torch.equal(state["body.weight"], HeadOnly().body.weight)
    assert values == sent


# ---- which parameters are trained ----


def names_of(*optimized: str, frozen: str = "") -> list[str]:
    """Return what is trained of a body and a head, where each of some optimizers holds one of them."""
    module = HeadOnly()
    optimizers = [torch.optim.SGD(module.get_submodule(name).parameters(), lr=0.1) for name in optimized]
    for parameter in module.get_submodule(frozen).parameters() if frozen else ():
        parameter.requires_grad_(False)
    return list(StateVector(module, optimizers).names)


def test_what_any_optimizer_holds_is_trained_in_the_modules_order() -> None:
    body = ["body.weight", "body.bias"]
    head = ["head.weight", "head.bias"]
    assert names_of("head") == head
    assert names_of("head", "body") == body + head
    assert names_of("head", "body", frozen="body") == head
    assert names_of() == body + head  # without an optimizer everything with a gradient


@pytest.mark.parametrize("change", ["added", "removed", "frozen", "replaced"])
def test_another_choice_of_trained_parameters_in_mid_fit_is_an_error(change: str) -> None:
    class Changes(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            if change == "added":
                trainer.optimizers[0].add_param_group({"params": [pl_module.body.bias]})
            elif change == "removed":
                trainer.optimizers[0].param_groups[0]["params"].pop()
            elif change == "replaced":
                pl_module.head.bias = nn.Parameter(torch.zeros(3))
            else:
                pl_module.head.bias.requires_grad_(False)

    name = "body.bias" if change == "added" else "head.bias"
    with pytest.raises(RuntimeError, match=f"parameters of HeadOnly changed during the fit: {name}"):
        fit_clients(FedAvg(1.0), HeadOnly(), clients_of(8, 8), 2, Changes())


def test_freezing_what_is_not_trained_changes_nothing() -> None:
    class Freezes(Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            pl_module.body.requires_grad_(False)

    fit_clients(FedAvg(1.0), expected := HeadOnly(), clients_of(8, 8), 2)
    fit_clients(FedAvg(1.0), module := HeadOnly(), clients_of(8, 8), 2, Freezes())
    assert distance(module.state_dict(), expected.state_dict()) == 0.0


def test_a_checkpoint_with_other_trained_parameters_is_refused(tmp_path: Any) -> None:
    class Whole(HeadOnly):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    trainer = fit_clients(FedAvg(1.0), HeadOnly(), clients_of(8, 8))
    trainer.save_checkpoint(tmp_path / "head.ckpt")
    with pytest.raises(ValueError, match=r"trained|parameter group"):
        fit_clients(FedAvg(1.0), Whole(), clients_of(8, 8), 2, ckpt_path=tmp_path / "head.ckpt")
