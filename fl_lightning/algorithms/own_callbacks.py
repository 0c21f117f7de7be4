"""The rules for callbacks of algorithms that users write."""

from __future__ import annotations

from typing import Any

from fl_lightning.arguments import got
from fl_lightning.parts.algorithm import Algorithm

#: The methods of :class:`AggregationCallback` that a subclass may extend but not replace, and the work of each.
RELIED_ON = {
    "__init__": "takes the settings that all algorithms share and builds the algorithm",
    "setup": "puts the federated loop into the trainer",
    "teardown": "ends the fit for the executor and the loggers",
    "on_before_optimizer_step": "adds the gradient of the local objective",
    "on_train_epoch_end": "logs the counts of the round",
    "state_dict": "returns the state of the server and of all parts; add your own to it",
    "load_state_dict": "takes the state of the server and of all parts",
    "on_load_checkpoint": "refuses the checkpoints of other algorithms",
    "on_save_checkpoint": "keeps the optimizers of clients out of checkpoints",
}


def checked_algorithm(callback: object, returned: Any) -> Algorithm:
    """Return what ``configure_algorithm`` returned; raise ``TypeError`` if it is no algorithm."""
    if isinstance(returned, Algorithm):
        return returned
    hint = " Is a `return` missing at its end?" if returned is None else ""
    raise TypeError(
        f"`{type(callback).__name__}.configure_algorithm` returned {got(returned)}; it must return an algorithm of "
        f"fl_lightning.parts, such as `SynchronousAlgorithm(sampler=self.sampler, ...)`.{hint}"
    )
