"""A logger of Weights & Biases for programs: it needs no account, and a resumed run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only


def make_wandb_logger(
    folder: Path,
    *,
    project: str = "fl-lightning",
    tags: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    resumed: Path | None = None,
    tell: Callable[[str], object] = print,
) -> WandbLogger:
    """Return a logger whose run has the name of its folder; it is online where the user is logged in.

    Args:
        folder: Folder of the run.
        project: Project in Weights & Biases.
        tags: Tags of the run.
        config: Settings of the run.
        resumed: The checkpoint from which the fit goes on; the logger then continues the run of that checkpoint.
        tell: Prints where the run is.
    """
    import torch
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    online = os.environ.get("WANDB_MODE", "online") == "online" and _logged_in()
    ids = [] if resumed is None else torch.load(resumed, weights_only=True, map_location="cpu").get("wandb_run_ids", [])
    logger = WandbLogger(
        name=folder.name,
        project=project,
        save_dir=folder,
        tags=list(tags),
        config=dict(config or {}),
        mode="online" if online else "offline",
        settings=wandb.Settings(console="off"),  # it would record every state of the progress bar
        **({"id": ids[0], "resume": "allow"} if ids else {}),
    )
    if online:
        tell(f"Weights & Biases: online, project {project}.")
    elif rank_zero_only.rank == 0:  # type: ignore[attr-defined]  # other processes have no run
        here = os.path.relpath(Path(logger.experiment.dir).parent)
        tell(f"Weights & Biases: offline (not logged in). To send this run later: wandb sync {here}")
    return logger


def _logged_in() -> bool:
    """Return whether Weights & Biases has a key of the user and can be reached."""
    import wandb

    try:
        return bool(wandb.login(prompt=False))
    except (wandb.errors.Error, OSError):
        return False
