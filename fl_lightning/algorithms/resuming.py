"""Describes a run in its checkpoint, and compares the two runs when a fit resumes from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.optim import Optimizer

from fl_lightning._lightning.loops.round_loop import RoundLoop
from fl_lightning.data.samples import FederatedSamples
from fl_lightning.loop import FederatedLoop
from fl_lightning.seeding import a_seed_was_given, default_seed
from fl_lightning.signatures import arguments
from fl_lightning.words import LOAD_WEIGHTS, short_repr

#: They change no result; a seed is compared by itself.
_IRRELEVANT = {"clients_at_once", "state_dir", "seed"}
#: Arguments of data modules that change no sample of a fit, or whose effect is in the fingerprints.
_IRRELEVANT_OF_DATA = {
    *("data_dir", "cache_dir", "download", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor"),
    *("partitioner", "split", "clients", "val", "test", "class_names"),
}
_FROM_WEIGHTS = f"To start another algorithm from its weights: {LOAD_WEIGHTS}."


def fingerprints(loop: FederatedLoop) -> tuple[str, str]:
    """Return texts that change with the clients that train or their order, and with the validation or test data.

    Each holds numbers and a digest of clients, sample indices, and labels if there are any. The loop keeps the texts,
    which take some milliseconds.
    """
    if loop.fingerprints is not None:
        return loop.fingerprints
    samples = loop.data.federated_samples
    split = samples.split
    training = _digest_of(samples, split.train)
    training.update(split.partition.fingerprint().encode())
    # Where data change, these are the samples of all rounds.
    number = sum(map(len, split.train.values()))
    clients = f"{len(split.train)} clients, {number} samples, {training.hexdigest()[:12]}"
    sets = []
    for name, parts in (("validation", split.val), ("test", split.test)):
        number = sum(map(len, parts.values()))
        sets.append(f"{number} {name} samples, {_digest_of(samples, parts).hexdigest()[:12]}")
    loop.fingerprints = clients, ", ".join(sets)
    return loop.fingerprints


def _digest_of(samples: FederatedSamples, parts: Mapping[int, np.ndarray]) -> hashlib._Hash:
    """Return the SHA-256 of the clients' ids, sample indices and labels."""
    labels = samples.source.labels
    digest = hashlib.sha256()
    for client, indices in parts.items():
        digest.update(np.array([client, len(indices)], "<i8").tobytes())
        digest.update(indices.astype("<i8").tobytes())
        if labels is not None:
            digest.update(labels[indices].astype("<i8").tobytes())
    return digest


def describe_run(callback: object, loop: FederatedLoop) -> dict[str, Any]:
    """Return what is compared when a run resumes: texts, numbers, and lists and dicts of them.

    Args:
        callback: The aggregation callback.
        loop: Its loop.
    """
    federation, evaluation = fingerprints(loop)
    given = {name: value for name, value in arguments(callback).items() if name not in _IRRELEVANT}
    data = loop.data
    of_data = {name: value for name, value in arguments(data).items() if name not in _IRRELEVANT_OF_DATA}
    of_data |= {"collate_fn": data.federated_samples.source.collate_fn, "poisons": data.poisons}
    for name, value in of_data.items():
        given[f"the data's {name}" if name in given else name] = value
    # The class of each optimizer, and the settings with which it was made.
    optimizers: list[tuple[str, dict[str, str]]] = []
    for optimizer in loop.trainer.optimizers:
        settings = {name: short_repr(value) for name, value in getattr(optimizer, "defaults", {}).items()}
        optimizers.append((type(optimizer).__name__, settings))
    return {
        "seed": loop.algorithm.run.federation.seed,
        "federation": federation,
        "evaluation": evaluation,
        "optimizers": optimizers,
        "settings": {name: short_repr(value) for name, value in given.items()},
    }


def check_resumable(saved: Mapping[str, Any], loop: FederatedLoop) -> None:
    """Compare the data of the runs before and after a checkpoint.

    Args:
        saved: The description of the run that wrote the checkpoint.
        loop: The loop.

    Raises:
        ValueError: If the clients, or the validation or test data, are others.
    """
    federation, evaluation = fingerprints(loop)
    if saved["federation"] != federation:
        raise ValueError(
            f"The checkpoint was written with another federation ({saved['federation']}, now {federation}): "
            "the number, sizes, samples or order of clients differ. Resume with the same data, partitioner, split "
            "and seeds."
        )
    if saved["evaluation"] != evaluation:
        raise ValueError(
            f"The checkpoint was written with other validation or test data ({saved['evaluation']}, now "
            f"{evaluation}), so its best and monitored values would not compare, and samples that chose a "
            "model could test it. Resume with the same split, fold, seeds, validation and test sets."
        )


def check_optimizers(saved: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> None:
    """Compare the optimizers with the checkpoint's, before they take its state.

    Raises:
        ValueError: If they are of other classes, which cannot take it.
    """
    before = [kind for kind, _ in saved["optimizers"]]
    now = [type(optimizer).__name__ for optimizer in optimizers]
    if before and before != now:
        raise ValueError(
            f"The checkpoint has the state of {', '.join(before)}, and `configure_optimizers` now returns "
            f"{', '.join(now)}, which cannot use it. Resume with the same optimizers. To go on from the weights "
            f"alone: {LOAD_WEIGHTS}."
        )


def log_changes(saved: Mapping[str, Any], callback: object, loop: FederatedLoop) -> None:
    """Say which settings differ from the checkpoint's, once the optimizers are there."""
    present = describe_run(callback, loop)
    changes: list[str] = []
    for (_, old), (_, new) in zip(saved["optimizers"], present["optimizers"], strict=False):
        changes += _changes(old, new)
    if changes:
        rank_zero_info(f"Optimizers go on with the checkpoint's settings, not the given ones: {', '.join(changes)}.")
    changes = _changes(saved["settings"], present["settings"])
    if changes:
        rank_zero_info(f"Resuming with other settings than the checkpoint's: {', '.join(changes)}.")
    own = loop.settings.seed
    seed = default_seed() if own is None else own
    was_given = own is not None or a_seed_was_given()
    if was_given and saved["seed"] != seed:
        rank_zero_info(f"Seed {seed} is not used: the checkpoint's seed {saved['seed']} goes on.")


def _changes(saved: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    changed = [name for name, text in present.items() if name in saved and saved[name] != text]
    return [f"{name} {saved[name]} -> {present[name]}" for name in changed]


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
        ValueError: If it holds the state of another algorithm's callback.
    """
    states = checkpoint.get("callbacks", {})
    writers = [name for name, state in states.items() if isinstance(state, Mapping) and "federation" in state]
    if writers and key not in writers:
        raise ValueError(f"The checkpoint was written by {writers[0]}, not by {key}. {_FROM_WEIGHTS}")
    if not writers:
        rank_zero_info(f"The checkpoint has no state of a federated algorithm, so {key} starts from its weights.")
    before = checkpoint.get("wandb_run_ids", [])
    if wandb_runs and before and not set(wandb_runs) & set(before):
        rank_zero_info(
            f"This fit logs to a new run of Weights & Biases, {wandb_runs[0]}; the checkpoint's run is {before[0]}. To "
            f'continue that run: WandbLogger(id="{before[0]}", resume="allow").'
        )
    known: Mapping[str, Any] = checkpoint.get("hyper_parameters", {})
    saved = {name: short_repr(value) for name, value in known.items()}
    present = {name: short_repr(value) for name, value in hparams.items()}
    changes = _changes(saved, present)
    if changes:
        rank_zero_info(
            f"The module's hyperparameters differ from the checkpoint's: {', '.join(changes)}. Optimizers and "
            "schedules keep the checkpoint's settings, including learning rates."
        )


def keep_plain_settings(checkpoint: dict[str, Any]) -> None:
    """Make hyperparameters plain: ``torch.load(weights_only=True)`` reads no ``DictConfig`` of Hydra."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
            return [plain(item) for item in value]
        return value

    for key in ("hyper_parameters", "datamodule_hyper_parameters"):
        if key in checkpoint:
            checkpoint[key] = plain(checkpoint[key])
    checkpoint.pop("hparams_type", None)


def log_how_to_resume(trainer: pl.Trainer, exception: BaseException) -> None:
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
    else:
        hint = "There is no checkpoint to resume from; the callback FederatedCheckpoint() writes one after every round."
    rank_zero_info(f"{end} in round {trainer.current_epoch + 1}. {hint}")
