"""Pages of the API: references are shown as code, and a method at the class that describes it alone."""

import re
from typing import Any

import griffe
from lightning.pytorch import Callback, LightningDataModule, LightningModule

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`~?([^`]+)`")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_OF_LIGHTNING = {name for kind in (Callback, LightningDataModule, LightningModule) for name in dir(kind)}


class ApiPages(griffe.Extension):
    """Replaces references by the last part of the name, and leaves out overrides."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", obj.docstring.value)
            # the parser knows the plural alone
            obj.docstring.value = _EXAMPLE.sub("Examples:", text)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Drop the methods and properties that override one of a base class, or of Lightning."""
        classes = list(_classes(pkg))
        overrides = [(cls, name) for cls in classes for name in cls.members if _is_override(cls, name)]
        for cls, name in overrides:
            cls.del_member(name)


def _classes(module: griffe.Module) -> Any:
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from _classes(member)
        elif isinstance(member, griffe.Class):
            yield member


def _is_override(cls: griffe.Class, name: str) -> bool:
    member = cls.members[name]
    if name.startswith("__") or member.is_alias or not (member.is_function or "property" in member.labels):
        return False
    lineage = [cls, *cls.mro()]
    of_lightning = any(
        str(getattr(base, "canonical_path", base)).startswith("lightning.") for kind in lineage for base in kind.bases
    )
    return any(name in base.members for base in lineage[1:]) or (of_lightning and name in _OF_LIGHTNING)
