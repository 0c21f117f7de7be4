"""Training steps of small networks as flat lists of batched products."""

from fl_lightning.executors.stacked.program.maker import ProgramMaker
from fl_lightning.executors.stacked.program.program import Program

__all__ = ["Program", "ProgramMaker"]
