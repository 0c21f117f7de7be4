"""Shows references of docstrings, such as ``:class:`~fl_lightning.FedAvg```, as code in the site."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`~?([^`]+)`")


class SphinxRoles(griffe.Extension):
    """Replaces references by the last part of the name."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", obj.docstring.value)
