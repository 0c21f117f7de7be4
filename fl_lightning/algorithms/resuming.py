"""Describes a run in its checkpoint, and checks whether another run can resume from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning.data import FederatedDataModule
from fl_lightning.loop import FederatedLoop
from fl_lightning.representation import ShowsArguments, arguments, short

#: They change no result, or are always taken from the checkpoint.
_IRRELEVANT = {"executor", "clients_at_once", "state_dir", "seed"}
_MOST_DEEP = 4  # objects within objects


def fingerprint(data: FederatedDataModule) -> str:
    """Return a short text that changes with the clients that train, and with their order.

    It holds their number and a digest of their sizes, of the partition, and of their samples' labels if there are any.
    """
    sizes = data.client_sizes.astype("<i8")
    digest = hashlib.sha256(sizes.tobytes())
    digest.update(np.asarray(data.client_ids, "<i8").tobytes())
    digest.update(data.partition.fingerprint().encode())
    if data.labels is not None:
        for client in data.client_ids:
            digest.update(data.labels[data.partition.indices[client]].astype("<i8").tobytes())
    return f"{len(sizes)} clients, {int(sizes.sum())} samples, {digest.hexdigest()[:12]}"


def describe_run(callback: object, loop: FederatedLoop) -> dict[str, Any]:
    """Return what is compared when a run resumes: texts, and lists and dicts of them.

    Args:
        callback: The aggregation callback.
        loop: Its loop; it keeps the fingerprint, which takes some milliseconds.
    """
    if loop.fingerprint is None:
        loop.fingerprint = fingerprint(loop.data)
    # exchanges are compared one by one when their states are loaded
    parts = {name: part for name, part in loop.algorithm.parts.items() if name not in ("exchange", "changing_buffers")}
    given = {name: value for name, value in arguments(callback).items() if name not in _IRRELEVANT}
    given |= {name: getattr(loop.data, name) for name in ("batch_size", "shuffle", "drop_last", "poisons")}
    return {
        "federation": loop.fingerprint,
        "parts": {name: type(part).__qualname__ for name, part in parts.items()},
        "settings": {name: [short(value), _digest(value)] for name, value in given.items()},
    }


def check_resumable(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Compare the descriptions of two runs; say in one line which settings differ.

    Raises:
        ValueError: If the clients or the parts are others.
    """
    if "settings" not in saved:
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
    for name, kind in present["parts"].items():
        if saved["parts"][name] != kind:
            raise ValueError(
                f"The checkpoint was written with {saved['parts'][name]} as the algorithm's `{name}`, and the "
                f"algorithm now has {kind}, which cannot use that state. Resume with the same parts. {_FROM_WEIGHTS}"
            )
    changes = _changes(saved["settings"], present["settings"])
    if changes:
        rank_zero_info(f"Resuming with other settings than the checkpoint's: {', '.join(changes)}.")


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
        ValueError: If it holds the state of another algorithm's callback.
    """
    states = checkpoint.get("callbacks", {})
    writers = [name for name, state in states.items() if isinstance(state, Mapping) and "federation" in state]
    if writers and key not in writers:
        raise ValueError(f"The checkpoint was written by {writers[0]}, not by {key}. {_FROM_WEIGHTS}")
    if not writers:
        rank_zero_info(f"The checkpoint has no state of a federated algorithm, so {key} starts from its weights.")
    _tell_other_wandb_run(checkpoint.get("wandb_run_ids", []), wandb_runs)
    known: Mapping[str, Any] = checkpoint.get("hyper_parameters", {})
    both = [name for name in hparams if name in known]
    texts = [{name: [short(each[name]), _digest(each[name])] for name in both} for each in (known, hparams)]
    if changes := _changes(*texts):
        rank_zero_info(
            f"The module's hyperparameters differ from the checkpoint's: {', '.join(changes)}. Optimizers and "
            "schedules keep the checkpoint's settings, including learning rates."
        )


def tell_how_to_resume(trainer: pl.Trainer) -> None:
    """Say in one line in which round a fit was interrupted, and how to go on."""
    kept = [getattr(callback, "last_model_path", "") for callback in trainer.checkpoint_callbacks]
    last = next((path for path in kept if path), "")
    if last:
        hint = f'Resume with: trainer.fit(..., ckpt_path="{last}")'
    else:
        hint = "There is no checkpoint to resume from; the callback FederatedCheckpoint() writes one after every round."
    rank_zero_info(f"Interrupted in round {trainer.current_epoch + 1}. {hint}")


def _tell_other_wandb_run(before: Sequence[str], present: Sequence[str]) -> None:
    """Say in one line how to continue the checkpoint's run of Weights & Biases, if another one is logged to."""
    if present and before and not set(present) & set(before):
        rank_zero_info(
            f"This fit logs to a new run of Weights & Biases, {present[0]}; the checkpoint's run is {before[0]}. To "
            f'continue that run: WandbLogger(id="{before[0]}", resume="allow").'
        )


_FROM_WEIGHTS = 'To start another algorithm from its weights: `module.load_state_dict(torch.load(path)["state_dict"])`.'


def _digest(value: object) -> str:
    return hashlib.sha256(_whole(value).encode()).hexdigest()[:16]


def _whole(value: object, depth: int = 0) -> str:
    """Return a text of all that a setting holds, the same in every process; of functions only the name."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, (list, tuple)) and depth < _MOST_DEEP:
        return f"[{', '.join(_whole(item, depth + 1) for item in value)}]"
    if isinstance(value, ShowsArguments) and depth < _MOST_DEEP:
        return f"{type(value).__qualname__}{_whole(arguments(value), depth + 1)}"
    return value if isinstance(value, str) else short(value)
