from __future__ import annotations

import numpy as np
import torch

from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.partitioners import IIDPartitioner


def digits(**kwargs) -> DigitsDataModule:
    data = DigitsDataModule(IIDPartitioner(10), **kwargs)
    data.prepare_data()
    data.setup("fit")
    return data


def test_all_digits_are_shared_out_as_small_colour_images():
    data = digits(batch_size=16)
    x = data.source_inputs()
    assert x.shape == (1797, 3, 32, 32)
    assert x.dtype == torch.uint8
    assert torch.equal(x[:, 0], x[:, 2])
    # class counts as scikit-learn's documentation of the data set gives them
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.class_names == [str(digit) for digit in range(10)]
    assert data.num_clients == 6
    assert int(data.partition.sizes.sum()) == 1797


def test_images_are_normalised_to_mean_0_and_standard_deviation_1():
    data = digits()
    x = data.preprocess(data.source_inputs(), training=False)
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3
