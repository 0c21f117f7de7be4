"""The same training on a CUDA device: every algorithm as on the CPU, resumed runs, half precision, two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.comparison import assert_same_weights
from helpers.stacked import clients_of
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors.stack.sources import DeviceCopy
from fl_lightning.models import MLPClassifier
from fl_lightning.testing import fits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.long,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


#: They draw noise or roundings on the module's device, where other numbers come than on a CPU.
NOISY = {name for name in ALGORITHMS if any(word in name for word in ("private", "compressed"))}


class NoDropout(Net):
    """A network that draws nothing: the devices' generators draw other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[3].p = 0.0


def fit(
    name: str, accelerator: str, executor: str, epochs: int = 7, *others: Any, module: Any = NoDropout, **options: Any
) -> tuple[Net, Any]:
    """Train an algorithm; return the module and the trainer."""
    callback, net = ALGORITHMS[name](seed=1, executor=executor), module()
    trainer = fits.fit(callback, net, data(), epochs, *others, accelerator=accelerator, **options)
    return net.cpu(), trainer


def assert_near(module: Net, other: Net, bound: float) -> None:
    """Check that two modules have the same state but for rounding."""
    torch.testing.assert_close(dict(other.state_dict()), dict(module.state_dict()), rtol=bound, atol=bound)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - NOISY))
def test_every_algorithm_ends_as_on_a_cpu(
    name: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected, _ = fit(name, "cpu", "sequential")
    found, _ = fit(name, "gpu", executor)
    assert_near(expected, found, 1e-8)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_stack_ends_as_one_client_after_the_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout and noise, which are drawn on the device."""
    monkeypatch.chdir(tmp_path)
    expected, _ = fit(name, "gpu", "sequential", module=Net)
    found, _ = fit(name, "gpu", "vectorized", module=Net)
    assert_near(expected, found, 1e-8)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedDyn", "FedAdam", "RADFed", "FedBuff", "FedAsync"])
def test_a_resumed_run_ends_with_the_same_bits(name: str, executor: str, tmp_path: Path) -> None:
    keep, path = ModelCheckpoint(tmp_path, save_last=True), tmp_path / "last.ckpt"
    whole, _ = fit(name, "gpu", executor, module=Net)
    fit(name, "gpu", executor, 4, keep, module=Net, enable_checkpointing=True)
    resumed, trainer = fit(name, "gpu", executor, module=Net, ckpt_path=path)
    assert trainer.current_epoch == 7
    assert_same_weights(dict(resumed.state_dict()), dict(whole.state_dict()))


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedAdam", "RADFed"])
def test_a_deterministic_run_gives_the_same_bits_again(name: str, executor: str) -> None:
    weights = []
    for _ in range(2):
        module, _ = fit(name, "gpu", executor, module=Net, deterministic=True)
        weights.append(dict(module.state_dict()))
    torch.use_deterministic_algorithms(False)
    assert_same_weights(weights[1], weights[0])


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedDyn", "FedAdam"])
def test_a_checkpoint_of_the_card_goes_on_on_a_cpu(name: str, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, save_last=True)
    expected, _ = fit(name, "cpu", "sequential")
    fit(name, "gpu", "vectorized", 4, keep, enable_checkpointing=True)
    resumed, trainer = fit(name, "cpu", "sequential", ckpt_path=tmp_path / "last.ckpt")
    assert trainer.current_epoch == 7
    assert_near(expected, resumed, 1e-8)


def test_bf16_mixed_trains_a_stack_as_clients_alone() -> None:
    clients = [(x.float(), y) for x, y in clients_of((6,))]
    weights = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module, federation = MLPClassifier(6, (8,), 3, lr=0.1), TensorDataModule(clients, batch_size=4)
        options = {"accelerator": "gpu", "precision": "bf16-mixed"}
        fits.fit(FedAvg(4, seed=1, executor=executor), module, federation, 4, **options)
        weights.append(dict(module.cpu().state_dict()))
    assert {value.dtype for value in weights[0].values()} == {torch.float32}
    torch.testing.assert_close(weights[1], weights[0], rtol=2e-2, atol=2e-2)


PROCESSES = """
import sys
sys.path[:0] = sys.argv[2:4]
import lightning as L, torch
from helpers.algorithms import ALGORITHMS, data
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from test_gpu import NoDropout

if __name__ == "__main__":
    card = torch.device("cuda", 0)
    strategy = DDPStrategy(
        parallel_devices=[card, card], cluster_environment=LightningEnvironment(), process_group_backend="gloo"
    )
    module = NoDropout()
    trainer = L.Trainer(
        max_epochs=7, accelerator="gpu", strategy=strategy, callbacks=[ALGORITHMS["FedAvg"](seed=1, executor="auto")],
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )
    assert trainer.world_size == 2
    trainer.fit(module, datamodule=data())
    if trainer.is_global_zero:
        torch.save({key: value.cpu() for key, value in module.state_dict().items()}, sys.argv[1])
"""


def test_two_processes_on_one_card_end_as_one(tmp_path: Path) -> None:
    expected, _ = fit("FedAvg", "gpu", "auto")
    script, end, tests = tmp_path / "script.py", tmp_path / "end.pt", Path(__file__).parent
    script.write_text(PROCESSES)
    command = [sys.executable, str(script), str(end), str(tests), str(tests.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(end, weights_only=True)
    torch.testing.assert_close(found, dict(expected.state_dict()), rtol=1e-9, atol=1e-9)


def test_samples_sent_ahead_are_not_overwritten() -> None:
    device = torch.device("cuda")
    upload = DeviceCopy([(1 << 22,)], [torch.float32], device)
    weight = torch.randn(2048, 2048, device=device)
    sums = []
    for epoch in range(5):
        for _ in range(50):  # the device is busy while the host fills and sends the next samples
            weight = torch.tanh(weight @ weight)
        upload.host()[0].fill_(epoch + 1)
        sums.append(upload.send()[0].sum())
    assert [value.item() for value in sums] == [(epoch + 1) * (1 << 22) for epoch in range(5)]
