"""Adapters and full fine-tuning of a small transformer on Shakespeare's roles: accuracy against bytes sent.

    python recipes/lora_plays.py --data-dir data                     # a stand-in, trained from nothing: 7 min of CPU
    python recipes/lora_plays.py --data-dir data --weights folder    # starts from folder/model.pt
    python recipes/lora_plays.py --validate-every 2 --logs folder    # what every round logs, in folder/<method>

A client is a role; a sample is 80 characters and the next one. Without ``--weights``, the network's weights are those
of a stand-in for a pre-trained model: it is trained centrally on a third of the roles. A second third is fine-tuned,
federatedly, and the last one validates. ``model.pt`` is the ``state_dict`` of this file's network.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import AggregationCallback, ClientSplit, FedAvg, FedLoRA
from fl_lightning.command.parser import Parser, ends_by_error
from fl_lightning.datamodules import ShakespeareDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.models import Classifier, add_lora

console = Console()
SILENT: dict[str, Any] = {
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
}


class Block(nn.Module):
    """Self-attention, then two layers for each character."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.before = nn.LayerNorm(width)
        self.between = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the states after the block, shape (batch, 80, width)."""
        y = self.before(x)
        query = self._by_head(self.query(y))
        key = self._by_head(self.key(y))
        value = self._by_head(self.value(y))
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        states: Tensor = x + self.mlp(self.between(x))
        return states

    def _by_head(self, y: Tensor) -> Tensor:
        """Return states in the shape (batch, heads, 80, width / heads)."""
        of_heads: Tensor = y.unflatten(-1, (self.heads, -1))
        return of_heads.transpose(1, 2)


class CharTransformer(Classifier):
    """Predicts the next character from the state of the last one."""

    def __init__(self, width: int = 64, blocks: int = 2, lr: float = 3e-3) -> None:
        super().__init__(num_classes=80, lr=lr)
        self.embedding = nn.Embedding(80, width)
        self.positions = nn.Parameter(torch.randn(80, width) / 10)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(blocks)))
        self.logits = nn.Linear(width, 80)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next character, shape (batch, 80)."""
        states = self.blocks(self.embedding(x.int()) + self.positions)
        logits: Tensor = self.logits(states[:, -1])
        return logits

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over what is not frozen."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.Adam(trainable, lr=self.lr)


def roles(options: argparse.Namespace, test: int, val: int) -> ShakespeareDataModule:
    """Return the data whose training clients are the third of the roles that neither tests nor validates."""
    return ShakespeareDataModule(
        options.data_dir,
        source=options.source,
        split=ClientSplit(num_folds=3, fold=test, val_fold=val),
        min_lines=options.min_lines,
        batch_size=32,
        stride=options.stride,
    )


def pretrained(options: argparse.Namespace) -> dict[str, Tensor]:
    """Return the weights of a file, or those of the stand-in."""
    if options.weights is not None:
        weights: dict[str, Tensor] = torch.load(options.weights / "model.pt", map_location="cpu")
        return weights
    epochs = options.pretrain_epochs
    console.print(f"Stand-in for a pre-trained model: trained from nothing for {epochs} epochs on other roles.")
    module = CharTransformer(lr=options.lr)
    trainer = L.Trainer(max_epochs=epochs, limit_val_batches=0, logger=False, **SILENT)
    trainer.fit(module, datamodule=roles(options, test=0, val=1))
    return module.state_dict()


def fine_tune(
    name: str, callback: AggregationCallback, weights: dict[str, Tensor], options: argparse.Namespace
) -> list[str]:
    """Return a row of the table: what travels, what it costs, and how good the result is."""
    L.seed_everything(options.seed, verbose=False)
    module = CharTransformer(lr=options.lr)
    data = roles(options, test=2, val=0)
    module.load_state_dict(weights)
    if isinstance(callback, FedLoRA):
        add_lora(module, ["*.query", "*.value", "*.mlp.*"], options.rank)
    trainer = L.Trainer(
        max_epochs=options.rounds,
        check_val_every_n_epoch=options.validate_every or options.rounds,
        callbacks=[callback, Communication()],
        logger=CSVLogger(options.logs, name, version="") if options.logs else False,
        **SILENT,
    )
    [before] = trainer.validate(module, datamodule=data, verbose=False)
    trainer.fit(module, datamodule=data)
    end = trainer.callback_metrics
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    megabytes = float(end["fed/bytes_up"]) / 1e6
    error = ""
    if "fed/lora_error" in end:
        error = f"{float(end['fed/lora_error']):.4f}"
    return [
        name,
        f"{trained:,}",
        f"{megabytes:.2f}",
        f"{before['val_acc']:.1%}",
        f"{float(end['val_acc']):.1%}",
        error,
    ]


def main() -> None:
    """Train or read the model, fine-tune it in four ways, and show the table."""
    parser = Parser(description=__doc__)
    parser.add_argument("--data-dir", help="folder of the plays; default: $FL_LIGHTNING_DATA, else data")
    parser.add_argument(
        "--source", choices=("gutenberg", "markdown", "leaf"), default="gutenberg", help="kind of files"
    )
    parser.add_argument("--weights", type=Path, help="folder of model.pt; default: a stand-in is trained")
    parser.add_argument("--pretrain-epochs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--rank", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--validate-every", type=int, help="rounds between validations; default: after the last one")
    parser.add_argument("--logs", type=Path, help="folder for the metrics of every round, as CSV")
    parser.add_argument("--stride", type=int, default=64, help="characters between samples; default: %(default)s")
    parser.add_argument("--min-lines", type=int, default=50, help="fewest lines of a role; default: %(default)s")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate of Adam; default: %(default)s")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    L.seed_everything(options.seed, verbose=False)
    weights = pretrained(options)
    methods: dict[str, AggregationCallback] = {
        "full fine-tuning": FedAvg(options.clients),
        "FedLoRA, average": FedLoRA("average", options.clients),
        "FedLoRA, ffa": FedLoRA("ffa", options.clients),
        "FedLoRA, svd": FedLoRA("svd", options.clients),
    }
    table = Table("method", "trained", "MB up", "accuracy before", "after", "error of B A")
    for name, callback in methods.items():
        table.add_row(*fine_tune(name, callback, weights, options))
    console.print(table)


if __name__ == "__main__":
    with ends_by_error():
        main()
