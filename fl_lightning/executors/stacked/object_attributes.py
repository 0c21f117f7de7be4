"""Reads the attributes of objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any


def attributes_of(value: Any, has_slots: Callable[[type], bool] = lambda base: True) -> dict[str, Any]:
    """Return an object's attributes by name, with those in slots.

    Args:
        value: The object.
        has_slots: Whether the slots of a class of the object count.
    """
    classes = [base for base in type(value).__mro__ if has_slots(base)]
    bases = [vars(base).values() for base in classes if "__slots__" in vars(base)]
    slots = [slot for members in bases for slot in members if isinstance(slot, MemberDescriptorType)]
    held = {}
    for slot in slots:
        with suppress(AttributeError):  # it is not set
            held[slot.__name__] = slot.__get__(value)
    return {**held, **getattr(value, "__dict__", {})}
