"""Reads the attributes of objects."""

from __future__ import annotations

from contextlib import suppress
from types import MemberDescriptorType
from typing import Any


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes by name, with those in slots."""
    bases = [vars(base).values() for base in type(value).__mro__ if "__slots__" in vars(base)]
    slots = [slot for members in bases for slot in members if isinstance(slot, MemberDescriptorType)]
    held = {}
    for slot in slots:
        with suppress(AttributeError):  # it is not set
            held[slot.__name__] = slot.__get__(value)
    return {**held, **getattr(value, "__dict__", {})}
