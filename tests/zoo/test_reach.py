"""What users write most is stacked, as docs/your-code.md says, and what cannot be is not."""

from __future__ import annotations

import pytest

from zoo.fitting import fit
from zoo.modules import ENTRIES

STACKED = [
    *("log_dict and a shared step", "logs .item()", "logs step and epoch", "save_hyperparameters"),
    *("BatchNorm1d", "LoRA on a frozen base", "frozen backbone in eval mode", "TransformerEncoder, padding mask"),
    "TransformerEncoder with dropout",
    *("AlphaDropout", "stochastic depth", "Gumbel softmax", "variational autoencoder, Adam"),
    *("batch is a dataclass", "batch is a BatchEncoding", "batch is a dict with strings", "bf16-mixed"),
    "nested batch",
    *("AdamW", "parameter groups", "OneCycleLR by step", "accumulates and clips", "head only, clipped by norm"),
    *("subclass of a progress bar", "EarlyStopping on a step value", "own learning rate for each client"),
    *(
        "accuracy object logged",
        "collection logged",
        "collection computed at the epoch's end",
        "MeanMetric of the loss",
    ),
    *("metrics in a ModuleDict", "own metric logged each step", "running mean of the loss"),
    *("Dropout", "validated, with dropout", "mixup with torch's Beta", "spectral_norm"),
    *("num_training_batches in the loss", "batch_idx in the loss", "ReduceLROnPlateau on a step value"),
]
ALONE = [
    *("class that is no module", "global of another file", "iterator that counts"),
    *("returns None for a batch index", "hard samples by mask", "numbers in a list", "AverageMeter of tensors"),
    *("running metric in the loss", "metric that draws samples"),
    *("penalty through a list", "global_step in the loss", "logger.log_metrics", "LBFGS", "LSTM"),
    *("gradient reversal", "on_after_backward", "post-accumulate hook", "optimizer hooks", "unit rows under no_grad"),
]
CASES = [(name, True) for name in STACKED] + [(name, False) for name in ALONE]


@pytest.mark.parametrize(("name", "stacked"), CASES)
def test_reach(name: str, stacked: bool) -> None:
    [entry] = [entry for entry in ENTRIES if entry.name == name]
    cause = fit(entry, "vectorized").cause
    assert (cause is None) == stacked, cause
