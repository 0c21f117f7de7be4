"""Trains with the parts of docs/examples on one process, and on two: ``python fit_examples.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs" / "examples"), str(ROOT / "tests")]

from coordinate_median import CoordinateMedian  # noqa: E402
from helpers.forking import in_child  # noqa: E402
from huber_anchor import HuberAnchor  # noqa: E402
from normalized_mean import NormalizedMean  # noqa: E402
from personal_head import PersonalHead  # noqa: E402
from quorum import Quorum  # noqa: E402
from round_robin import RoundRobin  # noqa: E402
from top_k import TopK  # noqa: E402

from fl_lightning import Federated, TensorDataModule  # noqa: E402
from fl_lightning.parts import Asynchronous, Participation, Redistribution, Synchronous, VirtualClock  # noqa: E402

#: The schedules of FedAvg, RADFed and FedBuff.
SCHEDULES = {
    "FedAvg": lambda: Synchronous(),
    "RADFed": lambda: Redistribution(2),
    "FedBuff": lambda: Asynchronous(VirtualClock([100, 95, 50, 25, 20, 5]), buffer_size=3),
}
PARTS = {
    "NormalizedMean": lambda: {"aggregation": NormalizedMean()},
    "CoordinateMedian": lambda: {"aggregation": CoordinateMedian()},
    "TopK": lambda: {"exchange": TopK(10)},
    "PersonalHead": lambda: {"exchange": PersonalHead()},
    "RoundRobin": lambda: {"sampler": RoundRobin(4)},
    "HuberAnchor": lambda: {"objective": HuberAnchor(0.1)},
    "Quorum": lambda: {"schedule": Quorum(2), "participation": Participation(dropout=0.5)},
}
#: Clients of an asynchronous algorithm train whenever they are free; a schedule is there instead of FedAvg's.
LEFT_OUT = {("RoundRobin", "FedBuff"), ("Quorum", "RADFed"), ("Quorum", "FedBuff")}


class Net(L.LightningModule):
    """A body with BatchNorm and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)
        self.double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.head(self.body(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> TensorDataModule:
    """Six clients of unequal sizes, in batches of 4."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 6, generator=generator).double(), torch.randint(0, 3, (n,), generator=generator))
        for n in (8, 14, 6, 23, 10, 12)
    ]
    return TensorDataModule(clients, batch_size=4)


class Save(L.Callback):
    """Saves the module when the fit ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, module: Any) -> None:
        if trainer.is_global_zero:
            torch.save(module.state_dict(), self.path)


def fit(part: str, schedule: str, path: Path, devices: int = 1) -> None:
    """Train four rounds."""
    own = {"schedule": SCHEDULES[schedule](), **PARTS[part]()}
    clients = None if "sampler" in own else 4
    callback = Federated(clients, **own, seed=1, executor="sequential")
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=devices,
        strategy="ddp_fork" if devices > 1 else "auto",
        callbacks=[callback, Save(path)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), datamodule=data())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for part in PARTS:
        for schedule in SCHEDULES:
            if (part, schedule) not in LEFT_OUT:
                for devices in (1, 2):
                    status = in_child(fit, part, schedule, folder / f"{part}-{schedule}-{devices}.pt", devices)
                    if status:
                        print(f"{part} under {schedule} on {devices} process(es) ended with {status}")
