"""The settings of clients' local training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.arguments import check_count, check_path, plain
from fl_lightning.seeding import default_seed


@dataclass
class LocalSettings:
    """How long clients train in a round, and from which seed.

    Attributes:
        local_epochs: Passes over a client's data; 1 if ``None``.
        local_steps: Optimizer steps instead of passes; ``None`` counts passes.
        own_seed: The run's seed; ``None`` takes the seed of ``lightning.seed_everything``.
        state_dir: Folder of vectors that clients keep; ``None`` keeps them in memory.
        resumed_seed: The seed of the run that is resumed, which comes before the others.

    Raises:
        TypeError: If ``state_dir`` is no path.
        ValueError: If an argument is out of its range, or both kinds of work are given.
    """

    local_epochs: int | None = None
    local_steps: int | None = None
    own_seed: int | None = None
    state_dir: str | os.PathLike[str] | None = None
    resumed_seed: int | None = None

    def __post_init__(self) -> None:
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError(
                f"Give `local_epochs` or `local_steps`, not both; got {self.local_epochs} and {self.local_steps}. "
                "A client trains for whole passes over its data, or for a fixed number of optimizer steps."
            )
        if self.state_dir is not None:
            check_path("state_dir", self.state_dir)
        check_count("local_epochs", 1 if self.local_epochs is None else self.local_epochs)
        check_count("local_steps", 1 if self.local_steps is None else self.local_steps)
        if self.own_seed is not None:
            check_count("seed", self.own_seed, 0)
        self.local_epochs, self.local_steps = plain(self.local_epochs), plain(self.local_steps)
        self.own_seed = plain(self.own_seed)

    @property
    def folder(self) -> Path | None:
        """Folder of vectors that clients keep."""
        return None if self.state_dir is None else Path(self.state_dir)

    @property
    def epochs(self) -> int:
        """Passes over a client's data, if these are counted."""
        return self.local_epochs or 1

    @property
    def full_work(self) -> int:
        """Local epochs, or steps, of a client that does all."""
        return self.local_steps or self.epochs

    @property
    def seed(self) -> int:
        """Seed of client draws, shuffling and everything random inside clients."""
        if self.resumed_seed is not None:
            return self.resumed_seed
        return default_seed() if self.own_seed is None else self.own_seed

    def change(self, **work: int | None) -> None:
        """Take another amount of work, ``local_epochs`` or ``local_steps``, once it is checked."""
        checked = vars(LocalSettings(**work))  # type: ignore[arg-type]
        vars(self).update({name: checked[name] for name in work})
