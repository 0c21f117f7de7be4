"""The trainer as a step of several clients may see it: what is the same for all of them."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

_SHARED = {
    *("current_epoch", "num_training_batches", "should_stop", "datamodule", "val_dataloaders"),
    *("num_val_batches", "optimizers", "lr_scheduler_configs", "strategy", "max_epochs", "min_epochs"),
    *("max_steps", "min_steps", "max_time", "accumulate_grad_batches", "gradient_clip_val", "precision"),
    *("gradient_clip_algorithm", "accelerator", "world_size", "num_nodes", "node_rank", "local_rank"),
    *("global_rank", "is_global_zero", "num_devices", "device_ids", "training", "validating", "testing"),
    *("predicting", "evaluating", "sanity_checking", "barebones", "log_every_n_steps", "val_check_interval"),
    *("check_val_every_n_epoch", "limit_train_batches", "limit_val_batches", "limit_test_batches"),
    *("default_root_dir", "log_dir", "estimated_stepping_batches", "state", "ckpt_path", "enable_validation"),
    *("fast_dev_run", "overfit_batches", "reload_dataloaders_every_n_epochs", "num_sanity_val_steps"),
    *("scaler", "use_distributed_sampler"),
}


class TrainerView:
    """Stands in for the trainer while a step is captured.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        if name not in _SHARED:
            # no exception, which code of the user's own could catch
            torch._dynamo.graph_break(f"`training_step` reads `trainer.{name}`, which all clients share")
        return getattr(self._trainer, name)
