"""Poisoned data, and the backdoor's success."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.data import Backdoor, FederatedDataModule, ImageDataModule, LabelFlipping, SampleSplit, Source
from fl_lightning.diagnostics import BackdoorSuccess
from fl_lightning.partitioners import IIDPartitioner


class Images(FederatedDataModule):
    """Sixty images of 6 x 6 pixels and three classes, told by their mean; validated on twelve."""

    def load(self) -> Source:
        y = torch.arange(60) % 3
        x = 0.05 * torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(0)) + y[:, None, None, None] / 4
        return Source(torch.utils.data.TensorDataset(x, y), y.numpy(), test_indices=np.arange(48, 60))


def set_up(poison: Any = None) -> Images:
    data = Images(IIDPartitioner(num_clients=4, seed=0), batch_size=4, split=SampleSplit(val=0.0, test="official"))
    if poison is not None:
        data.poison_with(poison)
    data.setup()
    return data


def samples_of(data: Images, client: int) -> tuple[Tensor, Tensor]:
    x, y = zip(*data.client_dataset(client), strict=True)
    return torch.stack(x), torch.stack(y)


def test_flipped_labels_of_chosen_clients_alone() -> None:
    clean, flipped = set_up(), set_up(LabelFlipping([1, 2], 3))
    for client in range(clean.num_clients):
        (x, y), (same, other) = samples_of(clean, client), samples_of(flipped, client)
        assert torch.equal(x, same)
        assert torch.equal(other, 2 - y if client in (1, 2) else y)


def test_a_stamp_on_a_share_of_a_clients_images() -> None:
    backdoor = Backdoor([0], target=2, fraction=0.5, size=2, value=7.0)
    clean, stamped = set_up(), set_up(backdoor)
    (x, y), (marked, classes) = samples_of(clean, 0), samples_of(stamped, 0)
    changed = (marked != x).flatten(1).any(1)
    # half of the client's 12 images, the same from version to version
    assert changed.nonzero().flatten().tolist() == [0, 1, 4, 5, 7, 9]
    assert bool((marked[changed][..., -2:, -2:] == 7.0).all())
    assert torch.equal(marked[changed][..., :-2, :], x[changed][..., :-2, :])
    assert bool((classes[changed] == 2).all())
    assert torch.equal(classes[~changed], y[~changed])
    assert torch.equal(samples_of(stamped, 1)[0], samples_of(clean, 1)[0])
    assert Backdoor([0], size=6, value=7.0).stamped(x).unique().tolist() == [7.0]
    one, _ = samples_of(set_up(Backdoor([0], fraction=0.01, size=2)), 0)
    assert int((one != x).flatten(1).any(1).sum()) == 1


def test_a_second_poison_adds_to_the_first_and_a_client_is_poisoned_once() -> None:
    clean, data = set_up(), Images(IIDPartitioner(4, seed=0), split=SampleSplit(val=0.0, test="official"))
    for poison in (LabelFlipping([0], 3), Backdoor([0, 1], target=2, fraction=1.0, size=2)):
        data.poison_with(poison)
    data.poison_with(LabelFlipping([1], 3))
    data.setup()
    assert samples_of(data, 0)[1].unique().tolist() == [2]  # stamped after they were flipped
    assert samples_of(data, 1)[1].unique().tolist() == [0]  # flipped after they were stamped
    assert torch.equal(samples_of(data, 2)[1], samples_of(clean, 2)[1])
    assert LabelFlipping([0, 0], 3).clients == [0]


class Bytes(ImageDataModule):
    """Black images of 6 x 6 pixels in two channels, which become -1 and -2; white becomes 1 and 3."""

    mean, std = (0.5, 0.4), (0.5, 0.2)

    def load(self) -> Source:
        y = torch.arange(12) % 3
        return Source(torch.utils.data.TensorDataset(torch.zeros(12, 2, 6, 6, dtype=torch.uint8), y), y.numpy())


def test_bytes_are_stamped_in_the_units_in_which_success_is_measured() -> None:
    data = Bytes(IIDPartitioner(2, seed=0), split=SampleSplit(val=0.0, test=0.0))
    backdoor = Backdoor([0], fraction=1.0, size=2, value=-0.6)
    data.poison_with(backdoor)
    data.setup()
    x, _ = samples_of(data, 0)
    # 255 (0.5 - 0.6 0.5) = 51, and 255 (0.4 - 0.6 0.2) = 71.4
    assert x[:, 0, -2:, -2:].unique().tolist() == [51]
    assert x[:, 1, -2:, -2:].unique().tolist() == [71]
    assert not x[..., :-2, :].any()
    served = data.preprocess(x, training=True)
    torch.testing.assert_close(backdoor.stamped(served), served, atol=0.5 / 255 / 0.2, rtol=0)


def test_a_stamp_that_bytes_cannot_hold_is_refused_with_what_they_can() -> None:
    data = Bytes(IIDPartitioner(2, seed=0), split=SampleSplit(val=0.0, test=0.0))
    data.poison_with(Backdoor([0], fraction=1.0, size=2, value=1.5))
    # Bytes are (0 - 0.5) / 0.5 = -1 to 1 in one channel, and (0 - 0.4) / 0.2 = -2 to 3 in the other.
    with pytest.raises(ValueError, match=r"from -1 to 1\b.* from -2 to 1\.5\b"):
        data.setup()


class TellsByCorner(L.LightningModule):
    """Takes an image for class 2 if its corners are bright, and for class 0 otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        bright = (x[:, 0, -1, -1] + x[:, 0, 0, 0] > 5).float()
        return torch.stack([1 - bright, torch.zeros_like(bright), bright], 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.w.square()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return {"preds": self(batch[0]), "target": batch[-1]} if len(batch) > 2 else None

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("value", "more", "success"), [(7.0, [], 5), (2.0, [], 0), (7.0, [torch.arange(9)], 5)])
def test_the_share_of_stamped_images_that_are_taken_for_the_target(value: float, more: Any, success: int) -> None:
    x = torch.zeros(9, 1, 6, 6)
    # Of the six images of the two other classes one is dark whatever its corner is.
    x[0, 0, 0, 0] = -9.0
    clients = [(x, *more, torch.arange(9) % 3)] * 2
    data = TensorDataModule(clients=clients, val=clients[0], batch_size=4)
    watch = BackdoorSuccess(Backdoor([0], target=2, size=2, value=value))
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), watch])
    trainer.fit(TellsByCorner(), datamodule=data)
    assert float(trainer.callback_metrics["fed/backdoor_success"]) == pytest.approx(success / 6)
    # Without a sample of another class there is no share.
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), watch])
    trainer.fit(TellsByCorner(), datamodule=TensorDataModule(clients, val=[each[2::3] for each in clients[0]]))
    assert "fed/backdoor_success" not in trainer.callback_metrics
