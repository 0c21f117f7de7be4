"""Vectors that belong to clients, and their mean over all clients."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import got
from fl_lightning.atomic_file import reserve
from fl_lightning.parts.federation import Federation, accumulator
from fl_lightning.parts.guards.changes_in_place import version_of


class VectorStore(Protocol):
    """Vectors by client."""

    def __getitem__(self, client: int) -> Tensor: ...
    def __setitem__(self, client: int, vector: Tensor) -> None: ...
    def __contains__(self, client: object) -> bool: ...
    def items(self) -> Any:
        """Return (client, vector) pairs."""


class MappedVectors:
    """Vectors by client in a memory-mapped file without a name, which vanishes with the process.

    Vectors are appended as clients come, so the file is no longer than what was written (doubled at most), and the
    system keeps in memory what is in use.

    Args:
        folder: Where the file is; made if there is none.

    Raises:
        OSError: If the disk has no room for the file, or for one that is twice as long.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the rows)
        self._places: dict[int, int] = {}
        self._map: np.ndarray = np.empty((0, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        # a pickle holds the vectors; where it is read, they go into a file of their own
        return _mapped, (self._folder, {client: vector.clone() for client, vector in self.items()})

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def __getitem__(self, client: int) -> Tensor:
        return torch.from_numpy(self._map[self._places[client]])

    def __setitem__(self, client: int, vector: Tensor) -> None:
        self.make_room({client: vector})
        self._map[self._places.setdefault(client, len(self._places))] = vector.detach().cpu().numpy()

    def make_room(self, vectors: Mapping[int, Tensor]) -> None:
        """Make the file long enough for these vectors; where that fails, nothing has changed."""
        number = len(self._places) + sum(client not in self._places for client in vectors)
        if number <= len(self._map):
            return
        row = next(iter(vectors.values())).detach().cpu().numpy()
        length = max(16, 2 * len(self._map), number)
        reserve(self._file, length * row.nbytes, self._folder)
        self._map = np.memmap(self._file, dtype=row.dtype, mode="r+", shape=(length, len(row)))

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (client, vector) pairs; the vectors are views of the file."""
        if self._places:
            # one tensor behind all views: a checkpoint writes it from the file, without a copy of each row
            rows = torch.from_numpy(self._map[: len(self._places)])
            yield from ((client, rows[place]) for client, place in self._places.items())


def _mapped(folder: Path, vectors: dict[int, Tensor]) -> MappedVectors:
    store = MappedVectors(folder)
    for client, vector in vectors.items():
        store[client] = vector
    return store


class ClientStates:
    """One vector per client and the weighted mean of all clients' vectors, ``sum_k p_k s_k / sum_k p_k``.

    A client without a vector of its own counts with the initial one and takes no memory. With several processes client
    k's vector lives on process ``k % num_ranks``, or on all processes if models circulate. The mean is on all
    processes, in float64. Each round updates it with one reduction.

    What a client hands in while it is at work, it sees at once. Others see it when the round has ended, so that nothing
    depends on the order in which clients train.

    Keep it in an attribute of a part, or in a list, tuple or dict there: then its vectors are kept when a round ends,
    dropped when one breaks off, and saved.

    Args:
        federation: The run.
        initial: Every client's first vector, floating-point of shape ``(length,)``.
        weights: p_k, shape ``(K,)``; equal weights if ``None``.

    Raises:
        TypeError: If ``initial`` is no such tensor.
        RuntimeError: If a vector is asked for that lives on another process; in a round, if one that was handed out or
            in is changed in place.
    """

    def __init__(self, federation: Federation, initial: Tensor, weights: np.ndarray | None = None) -> None:
        if not _is_vector(initial):
            raise TypeError(
                f"`initial` must be a floating-point tensor of shape (length,), got {got(initial)}. Give, for example, "
                "`torch.zeros_like(federation.model[: federation.num_parameters])`."
            )
        self.attach(federation)
        self._initial = initial.detach().clone()
        self._weights = np.ones(federation.num_clients) if weights is None else np.array(weights, dtype=np.float64)
        folder = federation.state_dir
        self._rows: VectorStore = {} if folder is None else MappedVectors(folder)
        self._new: dict[int, Tensor] = {}
        self._unseen: set[int] = set()  # the clients whose new vectors others see when the round has ended
        self._versions: dict[int, int] = {}  # of the new vectors
        self._lent: tuple[int, Tensor, int] | None = None  # the vector that was handed out last, and its version
        self.mean = self._initial.to(accumulator(initial), copy=True)
        """The mean over all K clients, shape ``(length,)``, float64."""

    def attach(self, federation: Federation) -> None:
        """Take the federation of a fit."""
        self._federation = federation
        federation.client_states.add(self)

    @property
    def has_new(self) -> bool:
        """Whether there are vectors that no round's end has kept, on this process."""
        return bool(self._new)

    def __getitem__(self, client: int) -> Tensor:
        """Return a client's vector, shape ``(length,)``; not to be written to.

        A vector that was handed in while the client was at work, others get when the round has ended; until then they
        get that of the round's start.

        Raises:
            RuntimeError: If the client's vector lives on another process.
        """
        self._check_lent()
        federation = self._federation
        if not federation.replicates_states and client % federation.num_ranks != federation.rank:
            _refuse_elsewhere(client, federation)
        is_seen = client == federation.client_states.client_at_work or client not in self._unseen
        new = self._new.get(client) if is_seen else None
        vector = self._at_round_start(client) if new is None else new
        self._lent = client, vector, version_of(vector)
        return vector

    def _at_round_start(self, client: int) -> Tensor:
        return self._rows[client].to(self._initial.device) if client in self._rows else self._initial

    def put(self, client: int, vector: Tensor) -> None:
        """Take a client's new vector, shape ``(length,)``; it is dropped if the round breaks off.

        What is handed in while a client is at work, others see when the round has ended.

        Raises:
            TypeError: If it is no floating-point tensor of one dimension.
            ValueError: If it has another length than the initial one.
        """
        self._check_lent()
        name = f"`states.put({client}, vector)`"
        if not _is_vector(vector):
            raise TypeError(
                f"{name} needs a floating-point tensor of shape ({len(self._initial)},), got {got(vector)}."
            )
        if vector.shape != self._initial.shape:
            raise ValueError(
                f"{name} needs a tensor of shape ({len(self._initial)},), as the initial vector has, got shape "
                f"{tuple(vector.shape)}. All clients' vectors have one length, because their mean is kept."
            )
        vector = vector.detach().to(self._initial.dtype)
        if vector.untyped_storage().nbytes() > vector.nbytes:
            vector = vector.clone()  # a view would keep, and save, the whole model
        self._new[client], self._versions[client] = vector, version_of(vector)
        if self._federation.client_states.client_at_work is None:
            self._unseen.discard(client)
        else:
            self._unseen.add(client)

    def _check_lent(self) -> None:
        """Raise ``RuntimeError`` if the vector that was handed out last has been written to."""
        lent, self._lent = self._lent, None
        if lent is not None and version_of(lent[1]) != lent[2]:
            _refuse_changed(lent[0], "handed it out")

    def _check_new(self) -> None:
        """Raise ``RuntimeError`` if a vector has been written to after it was handed in."""
        self._check_lent()
        for client, vector in self._new.items():
            if version_of(vector) != self._versions[client]:
                _refuse_changed(client, "taken it")

    def on_round_end(self) -> None:
        """Keep the round's new vectors, on all processes together."""
        self._check_new()
        change = torch.zeros_like(self.mean)
        if self._federation.replicates_states:
            self._new = self._federation.join(self._new)
        if isinstance(self._rows, MappedVectors):
            self._rows.make_room(self._new)  # a full disk breaks the round off before anything has changed
        for client in sorted(self._new):
            new, old = self._new[client].to(change), self._at_round_start(client)
            difference = (new - old).masked_fill_(new == old, 0.0)  # infinite values that stay are no change
            change.add_(difference, alpha=float(self._weights[client]))
        if not self._federation.replicates_states:
            change = self._federation.sum_over_ranks(change)
        self.mean = self.mean + change / float(self._weights.sum())
        for client, vector in self._new.items():
            self._rows[client] = vector.cpu()
        self._new, self._unseen, self._versions = {}, set(), {}

    def on_round_abort(self) -> None:
        """Forget the new vectors of a round that broke off."""
        self._new, self._unseen, self._versions, self._lent = {}, set(), {}, None

    def state_dict(self) -> dict[str, Any]:
        """Return the vectors of all processes' clients, and the mean."""
        mine = dict(self._rows.items())
        everyone = mine if self._federation.replicates_states else self._federation.join(mine)
        return {"clients": everyone, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the vectors of this process's clients, and the mean."""
        federation = self._federation
        for client, vector in state["clients"].items():
            if federation.replicates_states or client % federation.num_ranks == federation.rank:
                self._rows[client] = vector.cpu()
        self.mean = state["mean"].to(self.mean.device)


def states_of_fit(states: ClientStates | None) -> ClientStates:
    """Return the vectors that a part keeps in a fit.

    Raises:
        RuntimeError: Before the fit has begun.
    """
    if states is None:
        raise RuntimeError("Clients have no states before `trainer.fit` has begun.")
    return states


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 1


def _refuse_elsewhere(client: int, federation: Federation) -> NoReturn:
    number, rank = federation.num_ranks, federation.rank
    raise RuntimeError(
        f"The vector of client {client} is on process {client % number} of {number}, and this is process {rank}: with "
        "several processes, each keeps the vectors of the clients that it trains. Read it there, where `client % "
        'federation.num_ranks == federation.rank`. Or call `states.state_dict()["clients"]` on all processes, such as '
        "in `on_round_start`: it returns the vectors of all clients that have handed one in, by client. Or train in "
        "one process."
    )


def _refuse_changed(client: int, how: str) -> NoReturn:
    raise RuntimeError(
        f"The vector of client {client} was changed in place after `ClientStates` had {how}. Other clients may share "
        "this tensor, and a round that breaks off could not take the change back. Compute a new tensor, such as "
        "`states[client] + update` or `states[client].clone()`, and hand it in with `states.put(client, vector)`. Go "
        "on from a checkpoint that was written before this round, or anew."
    )
