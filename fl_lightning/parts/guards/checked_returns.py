"""Checks of what parts return that is not a vector: sizes of rounds, scores, corrections and losses."""

from __future__ import annotations

from typing import Any

from fl_lightning.arguments import got, got_number, is_number, is_sequence, plain
from fl_lightning.parts.correction import Correction
from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.guards.contracts import is_finite
from fl_lightning.representation import who_train


def checked_size(sampler: Any, method: str, arguments: tuple[int], returned: Any) -> int:
    """Return a sampler's ``cohort_size`` as a plain number.

    Raises:
        ValueError: If it is no whole number of at least 1, or larger than the number of clients.
    """
    size, num_clients = plain(returned), arguments[0]
    if type(size) is not int or size < 1 or (sampler.counts_clients and size > num_clients):
        raise ValueError(
            f"`{type(sampler).__name__}.{method}` must return a whole number from 1 to {num_clients}, the clients that "
            f"train in a round, got {got_number(returned)}. {who_train(num_clients)} in all; of a share of them make "
            "`max(1, round(share * num_clients))`."
        )
    return size


def checked_score(sampler: Any, method: str, arguments: tuple[LocalClient], returned: Any) -> float:
    """Return a sampler's ``score`` as a plain number; raise ``TypeError`` if it is none."""
    if not is_number(returned):
        raise TypeError(
            f"`{type(sampler).__name__}.{method}` must return a number, the client's importance, got "
            f"{got_number(returned)}. Return NaN for a client that cannot be scored."
        )
    return float(plain(returned))


def checked_correction(objective: Any, method: str, arguments: Any, returned: Any) -> Correction | None:
    """Return an objective's ``correction``.

    Raises:
        TypeError: If it is neither a :class:`Correction` nor ``None``.
        ValueError: If its linear term has not one coefficient for each trained parameter.
        FloatingPointError: If a user's own objective gives the linear term NaN or infinite values.
    """
    if returned is None:
        return None
    name = f"`{type(objective).__name__}.{method}`"
    if not isinstance(returned, Correction):
        raise TypeError(
            f"{name} must return a Correction, such as `Correction(pull=0.1)`, or None for nothing, got "
            f"{got(returned)}."
        )
    linear, n = returned.linear, objective.federation.num_parameters
    if linear is not None and linear.shape != (n,):
        raise ValueError(
            f"{name} returned a Correction whose `linear` has shape {tuple(linear.shape)}; it needs ({n},), one "
            "coefficient for each trained parameter. Cut buffers off with `vector[: self.federation.num_parameters]`."
        )
    if linear is not None and not objective.is_of_library and not is_finite(linear):
        raise FloatingPointError(
            f"{name} returned a Correction whose `linear` has NaN or infinite values, with which no client can train. "
            "Check its arithmetic: a division by 0, a root or a logarithm, a number that grows without bounds."
        )
    return returned


def checked_loss(objective: Any, method: str, arguments: Any, returned: Any) -> float | None:
    """Return an objective's ``loss_of`` as a plain number, or ``None``; raise ``TypeError`` if it is neither."""
    if returned is None:
        return None
    if not is_number(returned):
        raise TypeError(
            f"`{type(objective).__name__}.{method}` must return a number, the client's loss, or None, got "
            f"{got_number(returned)}."
        )
    return float(plain(returned))


def checked_slots(schedule: Any, returned: Any, num_active: int) -> list[int]:
    """Return a schedule's ``choose_slots`` as plain numbers.

    Args:
        schedule: The schedule.
        returned: What it returned.
        num_active: Clients that train in the round.

    Raises:
        TypeError: If it returned no list of whole numbers.
        ValueError: If a number is negative or comes twice, or they are more than the clients.
    """
    name = f"`{type(schedule).__name__}.choose_slots`"
    must = f"it must return distinct whole numbers of at least 0, at most {num_active}, one for each client that trains"
    if not is_sequence(returned):
        hint = " Is a `return` missing at its end?" if returned is None else ""
        raise TypeError(f"{name} returned {got(returned)}; {must}.{hint}")
    slots = [plain(slot) for slot in returned]
    if not all(type(slot) is int for slot in slots):
        raise TypeError(f"{name} returned {got(returned)}; {must}.")
    if len(slots) > num_active or len(set(slots)) < len(slots) or min(slots, default=0) < 0:
        raise ValueError(f"{name} returned {got(returned)}; {must}.")
    return slots
