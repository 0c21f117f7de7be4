"""An objective of which clients leave some parameters as they are (FedBABU)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from typing_extensions import override

from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Term


@dataclass(eq=False)
class Frozen(LocalObjective):
    """The plain objective, of which clients leave some parameters as they are (FedBABU, Oh et al. 2022).

    Args:
        pattern: Which; as for :class:`PersonalParameters`.

    Raises:
        ValueError: When the fit begins, if a pattern matches nothing.
    """

    runs_at = "client"
    sends_updates_alone = True
    pattern: Patterns

    @override
    def setup(self, federation: Federation) -> None:
        self._term = Term(frozen=federation.places(self.pattern))

    @override
    def correction(self, client: LocalClient) -> Term:
        return self._term

    @override
    def untrained(self, federation: Federation) -> Collection[str]:
        return federation.matching(self.pattern)
