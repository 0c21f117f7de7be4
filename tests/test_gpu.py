"""The same training on a CUDA device."""

from __future__ import annotations

import pytest
import torch
from helpers.toys import quiet_trainer

from fl_lightning import AggregationCallback, FedAvg, RADFed, TensorDataModule
from fl_lightning.executors.stacked.device_copy import DeviceCopy
from fl_lightning.models import MLPClassifier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("make", [lambda: FedAvg(3, seed=1), lambda: RADFed(2, 3, seed=1)], ids=["fedavg", "radfed"])
def test_gpu_equals_cpu_to_tolerance(make: type[AggregationCallback]) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,))) for n in (8, 14, 6, 23, 10, 12)]
    weights = []
    for accelerator in ("cpu", "gpu"):
        torch.manual_seed(0)
        module = MLPClassifier(6, (8,), 3, lr=0.1)
        data = TensorDataModule(clients=clients, batch_size=4, shuffle=False)
        quiet_trainer(max_epochs=4, accelerator=accelerator, callbacks=[make()]).fit(module, datamodule=data)
        weights.append({name: value.cpu() for name, value in module.state_dict().items()})
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["fused", "mapped"])
def test_vectorized_on_a_gpu_equals_sequential_on_a_cpu(momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,))) for n in (8, 14, 6, 23, 10, 12)]
    weights = []
    for accelerator, executor in (("cpu", "sequential"), ("gpu", "vectorized")):
        torch.manual_seed(0)
        module = MLPClassifier(6, (8,), 3, lr=0.1, momentum=momentum)
        callback = FedAvg(4, seed=1, executor=executor)
        trainer = quiet_trainer(max_epochs=4, accelerator=accelerator, callbacks=[callback])
        trainer.fit(module, datamodule=TensorDataModule(clients=clients, batch_size=4))
        weights.append({name: value.cpu() for name, value in module.state_dict().items()})
    assert trainer.fit_loop.executor.cause is None
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


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
