"""Copies of a module that cannot reach the trainer's loggers and counters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.metric_calls import without_graphs

_LOGGERS = ("logger", "loggers")
_MODULES = ("lightning_module", "model")
#: Attributes of the trainer that are the same for all clients of a round, and may change from round to round.
_OF_ROUND = frozenset(
    [
        "current_epoch",
        "num_training_batches",
        "should_stop",
        "datamodule",
        "val_dataloaders",
        "num_val_batches",
    ]
)
#: Attributes that have learning rates.
_RATES = frozenset(["optimizers", "lr_scheduler_configs", "strategy"])
#: Attributes that are the same for all clients of a fit.
_OF_FIT = frozenset(
    [
        "max_epochs",
        "min_epochs",
        "max_steps",
        "min_steps",
        "max_time",
        "accumulate_grad_batches",
        "gradient_clip_val",
        "precision",
        "gradient_clip_algorithm",
        "accelerator",
        "world_size",
        "num_nodes",
        "node_rank",
        "local_rank",
        "global_rank",
        "is_global_zero",
        "num_devices",
        "device_ids",
        "training",
        "validating",
        "testing",
        "predicting",
        "evaluating",
        "sanity_checking",
        "barebones",
        "log_every_n_steps",
        "val_check_interval",
        "check_val_every_n_epoch",
        "limit_train_batches",
        "limit_val_batches",
        "limit_test_batches",
        "default_root_dir",
        "log_dir",
        "estimated_stepping_batches",
        "state",
        "ckpt_path",
        "enable_validation",
        "fast_dev_run",
        "overfit_batches",
        "reload_dataloaders_every_n_epochs",
        "num_sanity_val_steps",
        "scaler",
        "use_distributed_sampler",
    ]
)


class WatchedTrainer:
    """Stands in for the trainer of a copied module: what may depend on the order of clients raises an error.

    The error is ``CannotVectorize``. The objects that it gives are the trainer's own: the copy must not change them.

    Args:
        trainer: The trainer.

    Attributes:
        reads_round: Whether the round's number, or another number of the round, has been read.
        reads_rates: Whether optimizers or schedulers have been read, whose learning rates differ from step to step.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.__dict__.update(_trainer=trainer, reads_round=False, reads_rates=False, _look=None, _copy=None)

    def show(self, copy: Any) -> None:
        """Give the copy where the trainer would give its module."""
        self.__dict__["_copy"] = copy

    def tell(self, look: Callable[[str, Any], object] | None) -> None:
        """Call a function with the name and the value of each attribute, before it is given."""
        self.__dict__["_look"] = look

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return self._copy
        if name in _LOGGERS:
            raise CannotVectorize("`training_step` calls the logger itself, which sees one client at a time")
        if name in _OF_ROUND:
            self.__dict__["reads_round"] = True
        elif name in _RATES:
            self.__dict__["reads_rates"] = True
        elif name not in _OF_FIT and (not name.startswith("_") or name == "_results"):
            raise CannotVectorize(f"`training_step` reads `trainer.{name}`, which all clients share")
        value = getattr(self._trainer, name)
        if self._look is not None:
            self._look(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        raise CannotVectorize(f"`training_step` sets `trainer.{name}`, which all clients share")

    def __deepcopy__(self, memo: Any) -> WatchedTrainer:
        return self


def _memory_of(module: Any) -> set[int]:
    """Return where a module's parameters and buffers lie in memory, as far as they tell."""
    places = set()
    for tensor in (*module.parameters(), *module.buffers()):
        with suppress(Exception):  # tensors of other classes may have no memory of their own
            places.add(tensor.untyped_storage().data_ptr())
    return places - {0}


def _refuse_computed_weights(module: Any) -> None:
    """Raise ``CannotVectorize`` for a weight that a hook sets before each call: no copy can be made of its result."""
    for path, part in module.named_modules():
        for name, value in vars(part).items() if part._forward_pre_hooks else ():
            if isinstance(value, Tensor) and not value.is_leaf:
                attribute = f"{path}.{name}" if path else name
                raise CannotVectorize(
                    f"a hook computes `{attribute}` from parameters before each call, as in `torch.nn.utils.prune` and "
                    "the old `weight_norm` and `spectral_norm` (`torch.nn.utils.parametrizations` has both, and "
                    "`parametrize` computes the same as a hook, in a stack too)"
                )


def copied(module: Any, trainer: pl.Trainer) -> tuple[Any, WatchedTrainer]:
    """Return a deep copy of a module, and the stand-in for the trainer that it sees."""
    _refuse_computed_weights(module)
    watched = WatchedTrainer(trainer)
    copy = deepcopy(module, {id(trainer): watched, **without_graphs(module)})
    shared = _memory_of(module) & _memory_of(copy)
    if shared:
        raise CannotVectorize("the module cannot be copied to try it out (a copy shares parameters or buffers with it)")
    watched.show(copy)
    for part in copy.modules():
        if isinstance(part, pl.LightningModule):
            part.__dict__["_trainer"] = watched  # Lightning leaves it out of copies
    return copy, watched
