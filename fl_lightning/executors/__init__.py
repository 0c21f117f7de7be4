"""How a round's tasks are computed: one client after the other, or many at once. All give the same result."""

from fl_lightning.executors.balancing import balance
from fl_lightning.executors.errors import CannotVectorize
from fl_lightning.executors.sequential import SequentialExecutor

__all__ = ["CannotVectorize", "SequentialExecutor", "balance"]
