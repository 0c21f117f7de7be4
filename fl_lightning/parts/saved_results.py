"""Clients' results as checkpoints hold them and processes exchange them: numbers beside the two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

import torch
from torch import Tensor

from fl_lightning.parts.federation import ClientResult, Federation, Task
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


def results_of_all(
    sent: Mapping[int, Tensor], known: Mapping[int, ClientResult], federation: Federation
) -> dict[int, ClientResult]:
    """Return the results that processes have in some slots, on all of them: one flat reduction of the models.

    Args:
        sent: The models that went to the slots' clients, shape ``(size,)``: where a result starts from this tensor
            itself, it does so everywhere, and only other ones travel.
        known: This process's results, by slot.
        federation: The run.
    """
    mine = {slot: known[slot] for slot in sent if slot in known}
    rows = [mine[slot].vector if slot in mine else torch.zeros_like(model) for slot, model in sent.items()]
    sums = federation.sum_over_ranks(torch.stack(rows))
    beside = {
        slot: (numbers_of(result), None if result.start is sent[slot] else result.start.cpu())
        for slot, result in mine.items()
    }
    everyone = {slot: entry for share in federation.gather(beside) for slot, entry in share.items()}
    results = {}
    for (slot, model), row in zip(sent.items(), sums, strict=True):
        if slot in everyone:
            numbers, start = everyone[slot]
            results[slot] = with_models(numbers, model if start is None else start.to(model.device), row.clone())
    return results


def other_class(result: ClientResult) -> type | None:
    """Return the class of a result, its task or its payload that :func:`numbers_of` loses, if there is one."""
    pairs = (result, ClientResult), (result.task, Task), (result.payload, Payload)
    return next((type(value) for value, known in pairs if type(value) is not known), None)
