"""Clients' results as checkpoints hold them and processes exchange them: numbers beside the two models."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

from torch import Tensor

from fl_lightning.parts.federation import ClientResult, Task
from fl_lightning.parts.traffic import Payload

_MODELS = ("start", "vector")
_NUMBERS = [each.name for each in fields(ClientResult) if each.init and each.name not in _MODELS]


def numbers_of(result: ClientResult) -> dict[str, Any]:
    """Return all of a result but its two models, as numbers and lists."""
    values = {name: getattr(result, name) for name in _NUMBERS}
    lists = {"task": list(astuple(result.task)), "payload": list(astuple(result.payload))}
    return {**values, **lists, "summed_lr": list(result.summed_lr)}


def with_models(numbers: dict[str, Any], start: Tensor, vector: Tensor) -> ClientResult:
    """Return the result of which :func:`numbers_of` returned the numbers.

    Args:
        numbers: The numbers.
        start: The model that the client received, shape ``(size,)``.
        vector: The model after local training, shape ``(size,)``.
    """
    parts = {"task": Task(*numbers["task"]), "payload": Payload(*numbers["payload"])}
    return ClientResult(start=start, vector=vector, **{**numbers, **parts})


def other_class(result: ClientResult) -> type | None:
    """Return the class of a result, its task or its payload that :func:`numbers_of` loses, if there is one."""
    pairs = (result, ClientResult), (result.task, Task), (result.payload, Payload)
    return next((type(value) for value, known in pairs if type(value) is not known), None)
