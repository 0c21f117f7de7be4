"""How many vectors as large as the model a fit holds, counted where PyTorch allocates them."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

#: Values of a sample. Their square is the model's size, of which a piece of a vector is a small part.
WIDTH = 1024
MEASURE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "memory.py"))


@pytest.mark.parametrize(
    ("algorithm", "models"),
    [
        # The module, the first model, the server's, a mean in float64 (two), and one of these three: a client's
        # gradients, what it hands back, the model to which the server moves.
        pytest.param("FedAvg", 6, id="FedAvg"),
        # Besides these two clients' variates before and after the round (four), and their mean in float64 (two).
        pytest.param("Scaffold", 12, id="SCAFFOLD"),
    ],
)
def test_a_fit_holds_no_model_more_than_it_needs(algorithm: str, models: int) -> None:
    held = MEASURE["models_at_peak"](algorithm, WIDTH)
    assert models - 1 < held < models + 0.9


def vectors(width: int) -> set[int]:
    """Return the addresses of the storages that are as large as a model."""
    # An object of another test may raise an error when its class is asked for.
    tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor) and each.numel() >= width**2]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.long  # It looks at all objects, which are many after other tests.
def test_after_a_fit_there_are_its_module_the_first_model_and_the_last_one() -> None:
    gc.collect()
    before = vectors(300)
    trainer = MEASURE["fit"]("FedAvg", 300, momentum=0.9)
    gc.collect()
    assert len(vectors(300) - before) == 3
    del trainer
    gc.collect()
    assert vectors(300) == before
