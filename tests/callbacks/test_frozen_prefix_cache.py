from __future__ import annotations

import lightning as L
import pytest
import torch
from helpers.comparison import assert_same_weights
from helpers.full_disk import limited_files
from helpers.toys import quiet_trainer
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
def test_a_killed_computation_goes_on_where_it_was(tmp_path, monkeypatch, harm):
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
    resumed = fit(Net(), Images(), FrozenPrefixCache(tmp_path, batch_size=16))
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


def test_module_without_frozen_prefix_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"MLPClassifier has 0\."):
        fit(MLPClassifier(192, (4,), 3), Images(), FrozenPrefixCache(tmp_path))


def test_data_whose_inputs_cannot_be_stored_are_refused(tmp_path):
    plain = L.LightningDataModule()
    with pytest.raises(TypeError, match="datamodule is LightningDataModule"):
        quiet_trainer(callbacks=[FrozenPrefixCache(tmp_path)]).validate(Net(), datamodule=plain)
    with pytest.raises(ValueError, match="Images augments its inputs"):
        fit(Net(), Images(augment=True), FrozenPrefixCache(tmp_path))


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_checkpoint_with_another_prefix_is_refused(tmp_path, stage):
    other = Net(seed=1)
    fit(other, Images())
    other.trainer.save_checkpoint(tmp_path / "other.ckpt")
    cached = quiet_trainer(callbacks=[FrozenPrefixCache(tmp_path / "cache")])
    with pytest.raises(RuntimeError, match="weights"):
        getattr(cached, stage)(Net(), datamodule=Images(), ckpt_path=tmp_path / "other.ckpt")
