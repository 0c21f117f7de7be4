"""Trying a module out without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torchmetrics import Metric


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put torch's generators back at the end."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Yield a function that names an attribute of a submodule that has changed; put all of them back at the end."""
    before = [(name, submodule, dict(vars(submodule))) for name, submodule in module.named_modules()]
    contents = [(value, value.copy()) for _, _, held in before for value in held.values() if _is_container(value)]
    skipped = {"_current_fx_name", "log", "_parameters", "_buffers", "_modules"}

    def changes() -> str | None:
        for name, submodule, held in before:
            for key, value in vars(submodule).items():
                if key not in skipped and held.get(key) is not value:
                    kind = "the metric " if isinstance(submodule, Metric) else ""
                    return f"{kind}`self.{name + '.' if name else ''}{key}`"
        for value, content in contents:
            if len(value) != len(content):
                owner = next(key for _, _, held in before for key, own in held.items() if own is value)
                return f"`self.{owner}`"
        return None

    try:
        yield changes
    finally:
        for value, content in contents:
            if len(value) != len(content):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)
        for _, submodule, held in before:
            attributes = vars(submodule)
            for key in [key for key in attributes if key not in held]:
                del attributes[key]
            attributes.update(held)


def _is_container(value: Any) -> bool:
    return type(value) in (list, dict, set)
