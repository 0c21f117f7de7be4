"""Federated learning with the Lightning Trainer that you already use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning._public import *  # noqa: F403
    from fl_lightning._public import __version__ as __version__

_ROOMS = ("datamodules", "diagnostics", "experiment", "models", "partitioners", "parts", "report")


def __getattr__(name: str) -> Any:
    """Import the library when it is used first: the command's help needs none of it."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name == "partition_report":  # training needs no reports
        from fl_lightning.report import partition_report

        return partition_report
    return getattr(import_module(f"{__name__}._public"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), *_ROOMS})
