"""Losses beside the clients' training: nothing is logged and no hook runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.quiet import QuietTraining


class QuietLosses(QuietTraining):
    """Runs ``training_step`` without gradients and without a trace."""

    def of(self, batches: Iterable[Any]) -> Iterator[tuple[int, float]]:
        """Yield each batch's place and loss, in eval mode; batches without a loss are skipped.

        Args:
            batches: As the data module gives them.
        """
        self._check_automatic()
        with self.unnoticed(), self._eval_mode(), torch.no_grad():
            for index, batch in enumerate(batches):
                output = self._loop._training_step(self._loop._transfer(batch), index, self._module)
                if output is not None:
                    yield index, float(output if isinstance(output, Tensor) else output["loss"])
