"""The vectors that a client keeps at its site from round to round.

A site keeps the vectors of the last two rounds in which it trained. A round whose answer the server did not take, since
it came too late or the server was stopped, is so taken back: the server says after which round it counted the client
last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.files import atomic_file
from fl_lightning.flower.records import Context, Parcel, from_records, to_records
from fl_lightning.settings import PathLike

#: The round of a client that has kept nothing yet.
NEVER = -1


class KeptVectors:
    """The vectors that a client keeps, in Flower's state of the client or in a folder of the site.

    Args:
        context: Flower's context, whose state lasts as long as Flower's run and the SuperNode's process.
        folder: A folder instead, which outlasts both.
        run: The fit.
        client: The client's number.
    """

    def __init__(self, context: Context, folder: PathLike | None, run: str, client: int) -> None:
        self._context = context
        self._path = None if folder is None else Path(folder) / f"client-{client}-{re.sub('[^0-9a-f]', '', run)}.npz"
        self._run = run
        held = self._read()
        is_same_fit = held is not None and held.values["run"] == run
        self._held = held if is_same_fit else None

    def after(self, round_index: int) -> dict[str, np.ndarray] | None:
        """Return the vectors that a round left; ``None`` if they are not known."""
        if round_index == NEVER:
            return {}
        if self._held is None:
            return None
        for name in ("new", "old"):
            if self._held.values[name] == round_index:
                return self._arrays_of(name)
        return None

    def keep(self, before: int, round_index: int, vectors: Mapping[str, np.ndarray]) -> None:
        """Keep the vectors that a round left, besides those with which it began, which another round left."""
        earlier = self.after(before) or {}
        arrays = {f"old/{name}": array for name, array in earlier.items()}
        arrays |= {f"new/{name}": array for name, array in vectors.items()}
        self._held = Parcel({"run": self._run, "old": before, "new": round_index}, arrays)
        self._write(self._held)

    def _arrays_of(self, name: str) -> dict[str, np.ndarray]:
        assert self._held is not None
        start = f"{name}/"
        return {key.removeprefix(start): array for key, array in self._held.arrays.items() if key.startswith(start)}

    def _read(self) -> Parcel | None:
        if self._path is None:
            return from_records(self._context.state)
        if not self._path.is_file():
            return None
        with np.load(self._path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        values: dict[str, Any] = {name: arrays.pop(f"values/{name}").item() for name in ("run", "old", "new")}
        return Parcel(values, arrays)

    def _write(self, parcel: Parcel) -> None:
        if self._path is None:
            self._context.state.update(to_records(parcel))
            return
        values = {f"values/{name}": np.array(value) for name, value in parcel.values.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._path) as path, path.open("wb") as file:
            np.savez(file, allow_pickle=False, **values, **parcel.arrays)
