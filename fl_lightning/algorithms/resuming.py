"""Checks whether a run can resume from a checkpoint, and says which settings differ and how to resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning._lightning.round_loop import RoundLoop
from fl_lightning.algorithms.description import describe_run, described
from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.clients.resumed_run import ResumedRun
from fl_lightning.loop import FederatedLoop
from fl_lightning.seeding import a_seed_was_given
from fl_lightning.sentences import LOAD_WEIGHTS


def check_resumable(saved: Mapping[str, Any], callback: object, loop: FederatedLoop) -> None:
    """Compare the runs before and after a checkpoint.

    Args:
        saved: The description of the run that wrote the checkpoint.
        callback: The aggregation callback.
        loop: Its loop. When the parts have taken the checkpoint too, it says in one line which settings differ.

    Raises:
        ValueError: If the clients, the validation or test data, or the parts are others.
    """
    present = describe_run(callback, loop)
    _refuse_another_run(saved, present)
    sentences = []
    if changes := _changes(saved["settings"], present["settings"]):
        sentences.append(f"Resuming with other settings than the checkpoint's: {', '.join(changes)}.")
    given = loop.settings.own_seed is not None or a_seed_was_given()
    if given and saved["seed"] != present["seed"]:
        sentences.append(f"Seed {present['seed']} is not used: the checkpoint's seed {saved['seed']} goes on.")
    loop.resumed = ResumedRun(" ".join(sentences), saved["optimizers"])


def _refuse_another_run(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    if not {"evaluation", "module_changed", "monitored", "buffers", "optimizers"} <= saved.keys():
        raise ValueError(
            "The checkpoint was written by an earlier release of fl-lightning and cannot be resumed. Its weights can "
            'be loaded: `torch.load(path)["state_dict"]`.'
        )
    if saved["federation"] != present["federation"]:
        raise ValueError(
            f"The checkpoint was written with another federation ({saved['federation']}, now {present['federation']}): "
            "the number, sizes, samples or order of clients differ. Resume with the same data, partitioner, split "
            "and seeds."
        )
    if saved["evaluation"] != present["evaluation"]:
        raise ValueError(
            f"The checkpoint was written with other validation or test data ({saved['evaluation']}, now "
            f"{present['evaluation']}), so its best and monitored values would not compare, and samples that chose a "
            "model could test it. Resume with the same split, fold, seeds, validation and test sets."
        )


def _changes(saved: Mapping[str, Sequence[str]], present: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"{name} {saved[name][0]} -> {text}" if saved[name][0] != text else f"{name} (in part)"
        for name, (text, digest) in present.items()
        if name in saved and saved[name][1] != digest
    ]


def check_checkpoint(
    checkpoint: Mapping[str, Any], key: str, hparams: Mapping[str, Any], wandb_runs: Sequence[str] = ()
) -> None:
    """Check the parts of a checkpoint that are not the aggregation callback's own state.

    Args:
        checkpoint: The whole checkpoint.
        key: The key of the aggregation callback's state.
        hparams: The module's hyperparameters. One line says which differ from the checkpoint's.
        wandb_runs: The ids of the runs of Weights & Biases that the trainer logs to. One line says if they are others.

    Raises:
        ValueError: If it holds the state of another algorithm's callback, or one without the algorithm's state.
    """
    states = checkpoint.get("callbacks", {})
    writers = [name for name, state in states.items() if isinstance(state, Mapping) and "federation" in state]
    if writers and key not in writers:
        raise ValueError(f"The checkpoint was written by {writers[0]}, not by {key}. {_FROM_WEIGHTS}")
    if key in states and key not in writers:
        raise ValueError(
            f"The checkpoint has a state of {key}, but in it there is nothing of the algorithm: its `state_dict` did "
            f"not call `super().state_dict()`. The run cannot be resumed. {_FROM_WEIGHTS}"
        )
    if not writers:
        rank_zero_info(f"The checkpoint has no state of a federated algorithm, so {key} starts from its weights.")
    _tell_other_wandb_run(checkpoint.get("wandb_run_ids", []), wandb_runs)
    known: Mapping[str, Any] = checkpoint.get("hyper_parameters", {})
    both = [name for name in hparams if name in known]
    texts = [{name: described(each[name]) for name in both} for each in (known, hparams)]
    if changes := _changes(*texts):
        rank_zero_info(
            f"The module's hyperparameters differ from the checkpoint's: {', '.join(changes)}. Optimizers and "
            "schedules keep the checkpoint's settings, including learning rates."
        )


def tell_how_to_resume(trainer: pl.Trainer, exception: BaseException) -> None:
    """After Ctrl-C or SIGTERM in a fit, say in one line in which round it ended, and how to go on."""
    if trainer.state.fn != "fit":
        return
    if isinstance(exception, KeyboardInterrupt):
        end = "Interrupted"
    elif isinstance(exception, SIGTERMException):
        loop = trainer.fit_loop
        if isinstance(loop, RoundLoop) and loop.stop.requeued:
            return
        end = "Ended by SIGTERM"
    else:
        return
    kept = [getattr(callback, "last_model_path", "") for callback in trainer.checkpoint_callbacks]
    last = next((path for path in kept if path), "")
    if last:
        hint = f'Resume with: trainer.fit(..., ckpt_path="{last}")'
    elif not any(isinstance(each, FederatedCheckpoint) and each.keeps_last for each in trainer.checkpoint_callbacks):
        hint = "There is no checkpoint to resume from; the callback FederatedCheckpoint() writes one after every round."
    elif trainer.current_epoch == 0:
        hint = "No round was finished, so there is no checkpoint yet."
    else:
        hint = "There is no checkpoint yet; FederatedCheckpoint(last_every_n_epochs=1) writes one after every round."
    rank_zero_info(f"{end} in round {trainer.current_epoch + 1}. {hint}")


def _tell_other_wandb_run(before: Sequence[str], present: Sequence[str]) -> None:
    """Say in one line how to continue the checkpoint's run of Weights & Biases, if another one is logged to."""
    if present and before and not set(present) & set(before):
        rank_zero_info(
            f"This fit logs to a new run of Weights & Biases, {present[0]}; the checkpoint's run is {before[0]}. To "
            f'continue that run: WandbLogger(id="{before[0]}", resume="allow").'
        )


_FROM_WEIGHTS = f"To start another algorithm from its weights: {LOAD_WEIGHTS}."
