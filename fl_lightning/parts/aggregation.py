"""How results are merged: streaming aggregations in torchmetrics' manner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.of_held import OfHeld, flag_of_held
from fl_lightning.parts.part import Part
from fl_lightning.parts.running_mean import RunningMean

Weighting = Literal["samples", "uniform"]


class Aggregation(Part, ABC):
    """Merges the results of clients into the model to which the server moves.

    :meth:`update` is called once for each result that the server takes: in synchronous rounds for each client, with
    redistribution for each circulating model when its cycle ends, in asynchronous algorithms for each result in the
    buffer when it is full. :meth:`merge` follows. A subclass defines these two.
    """

    #: Whether ``merge`` sums over the processes itself, so that a process sees only its own clients' results.
    #: Otherwise every process sees the results of all clients.
    reduces_over_ranks = False
    #: Whether ``merge`` also merges the module's buffers. Otherwise the server takes the mean of the clients', weighted
    #: by :meth:`weight_of`. True if a held aggregation merges them.
    merges_buffers: bool = flag_of_held()
    #: Clients count in proportion to their numbers of samples if it is ``"samples"``, else alike. SCAFFOLD's server
    #: weighs control variates likewise. That of a held aggregation, if there is one.
    weighting: str = OfHeld(lambda values: next(iter(values), "uniform"))  # type: ignore[assignment]
    #: Whether :attr:`ClientResult.summed_lr` is needed. True if a held aggregation needs it.
    needs_summed_lr: bool = flag_of_held()

    def federation_of_held(self, federation: Federation) -> Federation:
        """Return the federation that held aggregations see.

        Where this one sees the results of all clients on every process, so do they: a sum over processes would count
        each client once for each process.
        """
        return federation if self.reduces_over_ranks else replace(federation, sum_over_ranks=lambda tensor: tensor)

    def weight_of(self, result: ClientResult) -> float:
        """Return how much a result counts, its parameters and its buffers alike.

        By default as for a held aggregation, if there is one, or by :attr:`weighting`.
        """
        held = next((part for part in self.held_parts if isinstance(part, Aggregation)), None)
        if held is not None:
            return held.weight_of(result)
        return float(result.num_samples) if self.weighting == "samples" else 1.0

    @abstractmethod
    def update(self, result: ClientResult) -> None:
        """Take one client's result; see ``result.delta`` and ``result.parameters``, shape ``(num_parameters,)``."""

    @abstractmethod
    def merge(self, model: Tensor) -> Tensor | None:
        """Return the model to which the server moves, and forget the results.

        Args:
            model: The server's parameters, shape ``(num_parameters,)``, or its whole model, shape ``(size,)``, if the
                aggregation :attr:`merges_buffers`; not to be written to.

        Returns:
            The parameters, shape ``(num_parameters,)``, or the whole model, shape ``(size,)``; float64 where precision
            matters. ``None`` if there was no result: the server stays.
        """


class WeightedMean(Aggregation):
    """The weighted mean of the clients' models, as a running sum.

    ``sum_k p_k w_k / sum_k p_k`` with ``p_k = n_k`` (FedAvg, eq. (3a)) or ``p_k = 1`` (RADFed, eq. (37):
    no sizes are revealed).

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: ``"samples"`` or ``"uniform"``.

    Raises:
        ValueError: If ``weighting`` is anything else, or the clients' models differ in size.
    """

    reduces_over_ranks = True
    merges_buffers = True

    def __init__(self, weighting: Weighting = "samples") -> None:
        check_choice("weighting", weighting, ("samples", "uniform"))
        self.weighting = weighting
        self._mean = RunningMean()

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing added."""
        self._mean.reset()

    def update(self, result: ClientResult) -> None:
        """Add one client's model."""
        self._mean.add(result.vector, self.weight_of(result))

    def compute(self) -> Tensor | None:
        """Return this process's mean, float64 of shape ``(size,)``; ``None`` when nothing with a weight was added."""
        return self._mean.compute()

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the mean over all processes, float64 of shape ``(size,)``, and empty the sum."""
        mean, weight = self._mean.take(self.federation, model)
        return None if mean is None else self._complete(mean, weight, model)

    def on_round_abort(self) -> None:
        """Forget everything that was added."""
        super().on_round_abort()
        self._mean.reset()

    def _complete(self, mean: Tensor, weight: Tensor, model: Tensor) -> Tensor:
        """Return the mean in which clients that did not train count, too.

        Args:
            mean: The mean of those that did, float64 of shape ``(size,)``.
            weight: The sum of their weights.
            model: The server's model.
        """
        return mean

    def _client_weights(self) -> np.ndarray:
        """Return p_k of all clients, shape ``(K,)``."""
        sizes = self.federation.sizes
        return sizes.astype(np.float64) if self.weighting == "samples" else np.ones(len(sizes))


class CurrentMean(WeightedMean):
    """The mean over all clients; a client that did not train counts with the server's model (eq. (3c)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: As for :class:`WeightedMean`.

    Raises:
        ValueError: As for :class:`WeightedMean`; when an algorithm is made, if models circulate, or if the server may
            merge two results of one client at once: a client would count more than once.
    """

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if a client could count more than once."""
        super().check_beside(parts)
        _refuse_circulating(self, parts["schedule"])
        if parts["schedule"].repeats_in_buffer:
            raise ValueError(
                f"`aggregation` cannot be {self!r}, which counts every client once: the buffer may hold several "
                "results of one client. Give `once_per_buffer=True` or `wait_for_flush=True`, or WeightedMean()."
            )

    def _complete(self, mean: Tensor, weight: Tensor, model: Tensor) -> Tensor:
        share = weight / float(self._client_weights().sum())
        current = model.to(mean.dtype)
        return current + share * (mean - current)


class StaleMean(WeightedMean):
    """The mean over all clients; a client that did not train counts with its last local model (eq. (3b)).

    Before its first training, a client counts with the run's first model.

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: As for :class:`WeightedMean`.

    Raises:
        ValueError: As for :class:`WeightedMean`; when an algorithm is made, if models circulate, so that the server
            never sees a client's own model.
    """

    states: ClientStates

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if the server does not see the model of a single client."""
        super().check_beside(parts)
        _refuse_circulating(self, parts["schedule"])

    def on_fit_start(self, federation: Federation) -> None:
        """Give every client the first model."""
        super().on_fit_start(federation)
        self.states = ClientStates(federation, federation.model, self._client_weights())

    def update(self, result: ClientResult) -> None:
        """Renew the client's last model."""
        super().update(result)  # of these only the weight is needed: whether anybody reported
        self.states.put(result.task.client, result.vector)

    def on_round_end(self) -> None:
        """Wait for :meth:`merge`, after which the clients' models count."""

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the mean over all clients, float64 of shape ``(size,)``; ``None`` if no client reported."""
        merged = super().merge(model)
        self.states.on_round_end()
        return None if merged is None else self.states.mean


def _refuse_circulating(mean: Aggregation, schedule: Any) -> None:
    """Raise ``ValueError`` for a mean over all clients if the server gets models that many clients trained."""
    if schedule.keeps_models:
        raise ValueError(
            f"`aggregation` cannot be {mean!r}, a mean over all clients: with {type(schedule).__name__} the server "
            "gets models that many clients trained. Use WeightedMean(), or a schedule in which no models circulate."
        )
