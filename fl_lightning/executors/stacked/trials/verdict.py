"""The findings of trials with a fit's clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fl_lightning.executors.stacked.decisions import Tried
from fl_lightning.executors.stacked.trials.trial import Trial


@dataclass
class Verdict:
    """The findings of trials, part of checkpoints: they decide on roundings.

    Attributes:
        proven: Stacks train clients of up to so many batches as they train alone; 0 before a trial, infinite if
            ``training_step`` is a program, which is the same for every batch.
        programs: Whether ``training_step`` may be a program: none has failed so far.
        cause: Why clients are trained one after the other; ``None`` while they are not.
        draws: Whether the module draws random numbers when it trains.
        jointly: Whether metric objects may be given all clients' batches at once.
        each_round: Whether the module may do another thing in each round, so that every round has a trial.
        prepares: Whether a callback's ``on_client_start`` sets weights or learning rates.
        renewed: Rounds in a row that began under other circumstances than the round before.
        circumstances: The fingerprints of the module and its surroundings, by name, under which this was found.
        tried: What mapped steps did.
    """

    proven: float = 0
    programs: bool = True
    cause: str | None = None
    draws: bool = False
    jointly: bool = True
    each_round: bool = False
    prepares: bool = False
    renewed: int = 0
    circumstances: dict[str, str] = field(default_factory=dict)
    tried: Tried = field(default_factory=Tried)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Verdict:
        """Return the one of a state."""
        return cls(**{**state, "tried": Tried.from_state(state.get("tried", {}))})

    def state_dict(self) -> dict[str, Any]:
        """Return the findings as plain values."""
        return {**vars(self), "tried": self.tried.state_dict()}

    def add(self, trial: Trial, longest: float) -> None:
        """Take what a trial has found, beside that of an earlier one under the same circumstances.

        Args:
            trial: A trial that a stack has passed.
            longest: Batches of the longest client for which it holds.
        """
        if not self.proven:
            self.draws, self.jointly, self.each_round, self.prepares = False, True, False, False
        self.proven = max(self.proven, longest)
        self.draws = self.draws or trial.draws
        self.jointly = self.jointly and trial.jointly
        self.prepares = self.prepares or trial.prepares
        self.tried.add(trial.tried)
        self.each_round = self.each_round or trial.reads_round or trial.prepares
