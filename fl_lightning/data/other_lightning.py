"""A guard for the package ``pytorch_lightning``, whose classes are others than those of ``lightning``."""

from __future__ import annotations

_OTHER = "pytorch_lightning"


def check_lightning(role: str, thing: object) -> None:
    """Raise ``TypeError`` for an object of ``pytorch_lightning``.

    Both packages hold the same code, but neither takes the other's objects for its own: a hook is not called, or
    Lightning fails with ``Expected a parent``.

    Args:
        role: What the object is, as the beginning of a sentence.
        thing: The object.
    """
    if any(base.__module__.split(".")[0] == _OTHER for base in type(thing).__mro__):
        raise TypeError(
            f"{role} is a {type(thing).__name__} of `{_OTHER}`, whose classes are others than those of `lightning`, "
            f"which fl-lightning uses. Write `import lightning.pytorch as pl` instead of `import {_OTHER} as pl`, in "
            "every file that has it."
        )
