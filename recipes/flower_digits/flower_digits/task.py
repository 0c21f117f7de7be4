"""What the server, the clients and the simulation share: the module, the algorithm, the data."""

import hashlib

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning import FedProx, TensorDataModule
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner

NUM_CLIENTS = 3
BATCH_SIZE = 16
_HELD_OUT = 297


def module() -> L.LightningModule:
    """Return the module, with the same first weights everywhere."""
    L.seed_everything(7)
    return MLPClassifier(in_features=3 * 32 * 32, hidden=(32,), lr=0.05)


def algorithm(**options: object) -> FedProx:
    """Return the algorithm."""
    return FedProx(0.1, clients_per_round=1.0, seed=7, **options)


def trainer(rounds: int, callback: FedProx) -> L.Trainer:
    """Return the server's trainer."""
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return L.Trainer(max_epochs=rounds, callbacks=[callback], **quiet)


def samples_of(client: int) -> tuple[Tensor, Tensor]:
    """Return a client's images and labels. A site reads its own files here; these stand in for them."""
    images, labels = _digits()
    partition = DirichletPartitioner(NUM_CLIENTS, alpha=0.3, seed=1)(labels[_HELD_OUT:].numpy())
    rows = _HELD_OUT + torch.as_tensor(partition.indices[client])
    return images[rows], labels[rows]


def data_of(client: int) -> TensorDataModule:
    """Return a client's data module."""
    return TensorDataModule([samples_of(client)], batch_size=BATCH_SIZE)


def held_out() -> TensorDataset:
    """Return the server's validation set."""
    images, labels = _digits()
    return TensorDataset(images[:_HELD_OUT], labels[:_HELD_OUT])


def describe(weights: L.LightningModule) -> str:
    """Return a text that changes with any bit of the weights."""
    digest = hashlib.sha256()
    for tensor in weights.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = DigitsDataModule().load().dataset.tensors
    return images.float() / 255, labels
