from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
from helpers.comparison import assert_same_weights
from helpers.full_disk import limited_files
from helpers.toys import quiet_trainer
from helpers.written import assert_as_in, messages
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_lightning.callbacks.frozen_prefix_cache import FrozenPrefixCache
from fl_lightning.data import ImageDataModule, SampleSplit, Source
from fl_lightning.models import Classifier, MLPClassifier
from fl_lightning.models.frozen import FrozenPrefix
from fl_lightning.partitioners import IIDPartitioner

BATCHES_SEEN: list[int] = []  # rows of every forward pass through a Counter


class Counter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        BATCHES_SEEN.append(len(x))
        return x


class Net(Classifier):
    """Frozen convolution and BatchNorm, then a trained layer."""

    def __init__(self, seed: int = 0, stride: int = 1) -> None:
        super().__init__(num_classes=3, lr=0.1)
        torch.manual_seed(seed)
        self.prefix = FrozenPrefix(nn.Sequential(Counter(), nn.Conv2d(3, 4, 3, stride=stride), nn.BatchNorm2d(4)))
        self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        self.head(torch.zeros(1, 4, 6 // stride, 6 // stride))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.prefix(x))


class Images(ImageDataModule):
    """Bytes that are divided by ``scale`` in the course of preprocessing; 40 to train, 8 to validate, 8 to test."""

    mean, std = (0.0,), (1.0,)

    def __init__(self, seed: int = 0, scale: float = 255.0, augment: bool = False) -> None:
        super().__init__(IIDPartitioner(4), batch_size=16, split=SampleSplit(1 / 7, 1 / 7), augment=augment)
        self.seed, self.std = seed, (scale / 255,)  # type: ignore[misc]

    def load(self) -> Source:
        generator = torch.Generator().manual_seed(self.seed)
        images = torch.randint(256, (56, 3, 8, 8), dtype=torch.uint8, generator=generator)
        return Source(TensorDataset(images, torch.randint(3, (56,), generator=generator)))


@pytest.fixture(autouse=True)
def _forget_batches():
    BATCHES_SEEN.clear()


def fit(module: L.LightningModule, data: L.LightningDataModule, *callbacks: L.Callback) -> dict[str, Tensor]:
    torch.manual_seed(3)
    quiet_trainer(max_epochs=2, callbacks=list(callbacks)).fit(module, datamodule=data)
    return module.state_dict()


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.glob("*.npy"))


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_trains_the_same_weights_as_without(tmp_path, batch_size):
    plain = fit(Net(), Images())
    assert_same_weights(fit(Net(), Images(), FrozenPrefixCache(tmp_path, batch_size)), plain)


def test_each_sample_passes_the_prefix_once(tmp_path, capsys):
    fit(Net(), Images(), FrozenPrefixCache(tmp_path, batch_size=16))
    # A bar says what takes the time.
    assert "prefix: 100%" in capsys.readouterr().err
    # One sample to learn the outputs' shape, then 56 samples; batches are filled up to multiples of 16 rows.
    assert BATCHES_SEEN == [16, 16, 16, 16, 16]


@pytest.mark.parametrize(
    ("module", "data"),
    [
        ({"seed": 1}, {}),  # weights
        ({"stride": 2}, {}),  # configuration
        ({}, {"seed": 1}),  # data
        ({}, {"scale": 127.0}),  # preprocessing
    ],
)
def test_a_change_computes_anew(tmp_path, module, data):
    fit(Net(), Images(), FrozenPrefixCache(tmp_path))
    BATCHES_SEEN.clear()
    changed = fit(Net(**module), Images(**data), FrozenPrefixCache(tmp_path))
    assert BATCHES_SEEN
    assert len(files(tmp_path)) == 2
    assert_same_weights(changed, fit(Net(**module), Images(**data)))


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_evaluation_gives_the_same_metrics(tmp_path, stage):
    plain, cached = (
        getattr(quiet_trainer(callbacks=callbacks), stage)(Net(), datamodule=Images(), verbose=False)
        for callbacks in ([], [FrozenPrefixCache(tmp_path)])
    )
    assert cached == plain


def test_the_module_takes_raw_inputs_again_after_a_stage(tmp_path):
    module = Net()
    fit(module, Images(), FrozenPrefixCache(tmp_path))
    assert not module.prefix.bypass
    fresh = Net()
    fresh.load_state_dict(module.state_dict())
    tested = [quiet_trainer().test(each, datamodule=Images(), verbose=False) for each in (module, fresh)]
    assert tested[0] == tested[1]


class Killed(BaseException):
    """Ends a run where a kill would."""


@pytest.mark.parametrize("harm", ["none", "torn", "zeros", "flip"])
def test_a_killed_computation_goes_on_where_it_was(tmp_path, monkeypatch, capsys, harm):
    original = Counter.forward

    def fail_on_the_fourth_batch(self, x):
        if len(BATCHES_SEEN) == 3:
            raise Killed
        return original(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(Counter, "forward", fail_on_the_fourth_batch)
        with pytest.raises(Killed):
            fit(Net(), Images(), FrozenPrefixCache(tmp_path, batch_size=16))
    assert files(tmp_path) == []
    [partial] = tmp_path.glob("*.part")
    content = bytearray(partial.read_bytes())
    batch = (len(content) - 128) // 3  # after the header
    if harm == "torn":
        content += bytes(5)  # of a batch that was being written
    elif harm == "zeros":  # what a power cut may leave
        content += bytes(batch)
    elif harm == "flip":
        content[-batch] ^= 1
    partial.write_bytes(content)
    BATCHES_SEEN.clear()
    capsys.readouterr()
    resumed = fit(Net(), Images(), FrozenPrefixCache(tmp_path, batch_size=16))
    # the bar goes on at one or two batches of 16 of 56 samples
    assert re.findall(r"prefix: +(\d+)%", capsys.readouterr().err)[0] == ("29" if harm == "flip" else "57")
    assert len(BATCHES_SEEN) == 1 + 2 + (harm == "flip")  # one for the shape, and two of four batches
    assert len(files(tmp_path)) == 1
    assert not list(tmp_path.glob("*.part"))
    assert_same_weights(resumed, fit(Net(), Images()))


def test_two_threads_compute_the_same_bits(tmp_path):
    plain = fit(Net(), Images(), FrozenPrefixCache(tmp_path / "one", batch_size=8))
    torch.set_num_threads(2)
    try:
        assert_same_weights(fit(Net(), Images(), FrozenPrefixCache(tmp_path / "two", batch_size=8)), plain)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("harm", ["cut", "flip"])
def test_a_damaged_file_is_computed_again(tmp_path, harm):
    plain = fit(Net(), Images(), FrozenPrefixCache(tmp_path))
    path = tmp_path / files(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content if harm == "flip" else content[:-8])
    with pytest.warns(UserWarning, match=f"{path} is damaged"):
        again = fit(Net(), Images(), FrozenPrefixCache(tmp_path))
    assert_same_weights(again, plain)


def test_a_full_disk_is_an_error(tmp_path):
    # 56 rows of 4 x 6 x 6 float32 take 32,256 bytes, and the header 128
    with limited_files(32_000), pytest.raises(OSError, match="File too large"):
        fit(Net(), Images(), FrozenPrefixCache(tmp_path))
    assert files(tmp_path) == []


def other(folder, stage):
    """Evaluate or fit from a checkpoint with another prefix."""
    fit(module := Net(seed=1), Images())
    module.trainer.save_checkpoint(folder / "other.ckpt")
    cached = quiet_trainer(callbacks=[FrozenPrefixCache(folder / "cache")])
    getattr(cached, stage)(Net(), datamodule=Images(), ckpt_path=folder / "other.ckpt")


PLAIN = L.LightningDataModule()
#: What is done; the text file has the error.
REFUSED = {
    "no prefix": lambda folder: fit(MLPClassifier(192, (4,), 3), Images(), FrozenPrefixCache(folder)),
    "data of no clients": lambda folder: quiet_trainer(callbacks=[FrozenPrefixCache(folder)]).validate(Net(), PLAIN),
    "augmented data": lambda folder: fit(Net(), Images(augment=True), FrozenPrefixCache(folder)),
    **{stage: partial(other, stage=stage) for stage in ("fit", "validate", "test", "predict")},
    "half precision": lambda folder: quiet_trainer(precision="bf16-true", callbacks=[FrozenPrefixCache(folder)]).fit(
        Net(), Images()
    ),
}


def test_what_is_refused(tmp_path):
    assert_as_in(Path(__file__).with_suffix(".txt"), messages(REFUSED, tmp_path), tmp_path)
