"""Vectors that belong to clients, and their mean over all clients.

A client's new vector passes through three stores on its way. With three clients whose first vector is 0::

                            new         counted     rows        mean
    vectors[1] = 6          {1: 6}      {}          {}          0       client 1 has it from now on
    commit()                {}          {1: 6}      {}          2       it counts, on all processes
    keep()                  {}          {}          {1: 6}      2       the round is done
    vectors[1] = 9          {1: 9}      {}          {1: 6}      2
    put_back()              {}          {}          {1: 6}      2       the round broke off
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.mapped_vectors import MappedVectors
from fl_lightning.vectors import pieces, sum_dtype


class ClientVectors:
    """One vector per client and the weighted mean of all clients' vectors, ``sum_k p_k v_k / sum_k p_k``.

    A client without a vector of its own counts with the initial one and takes no memory. With several processes client
    k's vector lives on process ``k % num_ranks``, or on all processes if models circulate. New vectors count in the
    mean from the next :meth:`commit` on, at the latest from the round's end. A round that breaks off forgets them; see
    :class:`~fl_lightning.parts.kept.Kept`.

    Args:
        federation: The run.
        initial: Every client's first vector, floating-point of shape ``(length,)``.
        weights: p_k, shape ``(K,)``; equal weights if ``None``.
        has_mean: Whether there is a mean, which costs a sum over processes in every round.
    """

    def __init__(
        self, federation: Federation, initial: Tensor, weights: np.ndarray | None = None, *, has_mean: bool = True
    ) -> None:
        self._federation = federation
        self._has_mean = has_mean
        # A first vector of zeros, as most are, takes the memory of one value.
        is_zero = not initial.any()
        self._initial = initial.new_zeros(1).expand(len(initial)) if is_zero else initial.detach()
        self._weights = np.ones(federation.num_clients) if weights is None else np.asarray(weights, np.float64)
        folder = federation.state_dir
        # The vectors of the last boundary, then those of this round that count in the mean, and those that do not yet.
        self._rows: dict[int, Tensor] | MappedVectors = {}
        if folder is not None and len(initial):
            self._rows = MappedVectors(folder)
        self._counted: dict[int, Tensor] = {}
        self._new: dict[int, Tensor] = {}
        #: The mean over all K clients, shape ``(length,)``, float64; empty if there is none.
        self.mean: Tensor = self._initial[: len(initial) if has_mean else 0].to(sum_dtype(initial))
        self._kept_mean = self.mean

    def __getitem__(self, client: int) -> Tensor:
        """Return a client's vector, shape ``(length,)``; not to be written to.

        Raises:
            RuntimeError: If the client's vector lives on another process.
        """
        if not self._is_here(client):
            number = self._federation.num_ranks
            raise RuntimeError(f"The vector of client {client} is on process {client % number} of {number}.")
        if client in self._new:
            return self._new[client]
        return self._known(client)

    def get(self, client: int) -> Tensor | None:
        """Return a client's vector; ``None`` if it has none of its own yet."""
        if client in self._new or client in self._counted or client in self._rows:
            return self[client]
        return None

    def __setitem__(self, client: int, vector: Tensor) -> None:
        """Take a client's new vector, shape ``(length,)``."""
        vector = vector.detach().to(self._initial.dtype)
        # A view would keep, and save, the whole model.
        is_view = vector.untyped_storage().nbytes() > vector.nbytes
        self._new[client] = vector.clone() if is_view else vector

    def _is_here(self, client: int) -> bool:
        return self._federation.replicates or client % self._federation.num_ranks == self._federation.rank

    def _known(self, client: int) -> Tensor:
        """Return the vector with which a client counts in the mean."""
        if client in self._counted:
            return self._counted[client]
        if client in self._rows:
            return self._rows[client].to(self._initial.device)
        return self._initial

    def commit(self) -> None:
        """Let new vectors count in the mean; call it on all processes together."""
        if self._federation.replicates:
            self._new = self._federation.join(self._new)
        mean = self._next_mean() if self._has_mean else self.mean
        counted = {**self._counted, **self._new}
        if counted and isinstance(self._rows, MappedVectors):
            # A full disk breaks the round off here, while nothing has changed.
            self._rows.make_room(counted)
        self.mean = mean
        self._counted = counted
        self._new = {}

    def _next_mean(self) -> Tensor:
        """Return the mean with the new vectors; call it on all processes together."""
        change = torch.zeros_like(self.mean)
        for client in sorted(self._new):
            weight = float(self._weights[client])
            for total, new, old in pieces(change, self._new[client], self._known(client)):
                difference = new.to(total) - old.to(total)
                # Infinite values that stay are no change.
                difference.masked_fill_((new == old).to(total.device), 0.0)
                total.add_(difference, alpha=weight)
        if not self._federation.replicates:
            change = self._federation.sum_over_ranks(change)
        return change.div_(float(self._weights.sum())).add_(self.mean)

    def keep(self) -> None:
        """Make the vectors that count in the mean the boundary's."""
        for client, vector in self._counted.items():
            self._rows[client] = vector.cpu()
        self._counted = {}
        self._kept_mean = self.mean

    def put_back(self) -> None:
        """Forget what was handed in since the boundary."""
        self._new = {}
        self._counted = {}
        self.mean = self._kept_mean

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's vectors of all processes' clients, and their mean; call it on all processes."""
        vectors = dict(self._rows.items())
        if not self._federation.replicates:
            vectors = self._federation.join(vectors)
        return {"clients": vectors, "mean": self._kept_mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the vectors of this process's clients, and the mean; :meth:`keep` comes after."""
        for client, vector in state["clients"].items():
            if self._is_here(client):
                self._rows[client] = vector.cpu()
        self.mean = state["mean"].to(self.mean.device)
