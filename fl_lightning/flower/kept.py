"""The vectors that a client keeps at its site from message to message.

A message is known by its round and its number in the round. A site keeps the vectors that the messages of the last
round left, and that the last message before it left. A message whose answer the server did not take, since it came too
late or the server was stopped, is so taken back: the server says after which message it counted the client last.
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

#: A message to a client: its round, and its number in the round, both from 0. Nothing, if the client has had none.
Turn = tuple[int, ...]


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
        #: What each message has left, by its turn.
        self._left: dict[Turn, dict[str, np.ndarray]] = {}
        held = self._read()
        if held is not None and held.values["run"] == run:
            self._left = _by_turn(held)

    def after(self, turn: Turn) -> dict[str, np.ndarray] | None:
        """Return the vectors that a message left; ``None`` if they are not known."""
        return self._left.get(turn) if turn else {}

    def keep(self, before: Turn, turn: Turn, vectors: Mapping[str, np.ndarray]) -> None:
        """Keep the vectors that a message left, besides those that the server may still go back to.

        Args:
            before: The message after which the server counted the client last.
            turn: The message.
            vectors: What it left.
        """
        # They are in ascending order.
        counted = [each for each in self._left if each <= before]
        of_round = [each for each in counted if each[0] == turn[0]]
        of_earlier_rounds = [each for each in counted if each[0] != turn[0]]
        needed = {each: self._left[each] for each in (*of_earlier_rounds[-1:], *of_round)}
        self._left = {**needed, turn: dict(vectors)}
        self._write()

    def _read(self) -> Parcel | None:
        if self._path is None:
            return from_records(self._context.state)
        if not self._path.is_file():
            return None
        with np.load(self._path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        values: dict[str, Any] = {name: arrays.pop(f"values/{name}").item() for name in ("run", "turns")}
        return Parcel(values, arrays)

    def _write(self) -> None:
        arrays: dict[str, np.ndarray] = {}
        for turn, vectors in self._left.items():
            arrays |= {f"{_to_text(turn)}/{name}": vector for name, vector in vectors.items()}
        # A message may leave no vectors, and is known all the same.
        parcel = Parcel({"run": self._run, "turns": " ".join(map(_to_text, self._left))}, arrays)
        if self._path is None:
            self._context.state.update(to_records(parcel))
            return
        values = {f"values/{name}": np.array(value) for name, value in parcel.values.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._path) as path, path.open("wb") as file:
            np.savez(file, allow_pickle=False, **values, **parcel.arrays)


def _by_turn(parcel: Parcel) -> dict[Turn, dict[str, np.ndarray]]:
    """Return the vectors that were written, by the turn of the message that left them."""
    left: dict[Turn, dict[str, np.ndarray]] = {}
    for text in str(parcel.values["turns"]).split():
        start = f"{text}/"
        names = [name for name in parcel.arrays if name.startswith(start)]
        turn = tuple(map(int, text.split(".")))
        left[turn] = {name.removeprefix(start): parcel.arrays[name] for name in names}
    return left


def _to_text(turn: Turn) -> str:
    return ".".join(map(str, turn))
