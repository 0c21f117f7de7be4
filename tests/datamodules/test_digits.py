from __future__ import annotations

import numpy as np
import torch

from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.partitioners import IIDPartitioner


def test_all_digits_are_shared_out_as_small_colour_images():
    data = DigitsDataModule(IIDPartitioner(10))
    data.setup("fit")
    x = data.source_inputs()
    assert x.shape == (1797, 3, 32, 32)
    assert x.dtype == torch.uint8
    assert torch.equal(x[:, 0], x[:, 2])
    # class counts as scikit-learn's documentation of the data set gives them
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.class_names == [str(digit) for digit in range(10)]
    assert (data.num_clients, int(data.partition.sizes.sum())) == (6, 1797)
    normalised = data.preprocess(x, training=False)
    assert abs(float(normalised.mean())) < 1e-3
    assert abs(float(normalised.std()) - 1) < 1e-3
