"""Executors train a round's clients: one after the other, or many at once. All give the same result."""

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.auto import AutoExecutor, make_executor
from fl_lightning.executors.base import Executor, balance
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.vectorized import VectorizedExecutor

__all__ = [
    "AutoExecutor",
    "CannotVectorize",
    "Executor",
    "SequentialExecutor",
    "VectorizedExecutor",
    "balance",
    "make_executor",
]
