"""In double precision, too, one client alone is what stock Lightning trains, bit for bit."""

from __future__ import annotations

import pytest
from helpers.comparison import Classifier, assert_same_weights, samples, train_centrally, train_federatedly, weights_of

from fl_lightning import FedAvg


@pytest.mark.parametrize("number", [16, 23, 37, 49])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_mean_of_one_model_is_that_model(number: int, weighting: str) -> None:
    # n w / n is not always w
    algorithm = FedAvg(1.0, weighting=weighting, seed=0)
    left = train_federatedly(
        Classifier(), [samples(number)], algorithm=algorithm, max_epochs=3, precision="64-true"
    ).lightning_module
    right = train_centrally(Classifier(), samples(number), max_epochs=3, precision="64-true").lightning_module
    assert_same_weights(weights_of(left), weights_of(right))
