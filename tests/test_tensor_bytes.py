"""Bytes of tensors: every type and layout has some, and those of ordinary tensors are numpy's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.data.tensor_bytes import fingerprint, tensor_bytes
from fl_lightning.testing.fits import fit


class Weighted(TensorDataModule):
    """Has a tensor as a setting."""

    def __init__(self, clients: Any, weights: Tensor) -> None:
        super().__init__(clients, batch_size=None)
        self.weights = weights


def thirds(*numbers: float) -> Tensor:
    """Return a sparse tensor of six numbers, of which every third one may differ from 0."""
    places = torch.arange(0, 3 * len(numbers), 3)[None]
    return torch.sparse_coo_tensor(places, torch.tensor(numbers), (3 * len(numbers),))


@pytest.mark.parametrize(
    "weights",
    [
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        thirds(1.0, 2.0),
        thirds(1.0, 2.0).to_dense().view(2, 3).to_sparse_csr(),
    ],
    ids=["bfloat16", "coordinates", "rows"],
)
def test_a_run_with_such_a_tensor_is_saved_and_resumed(
    weights: Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(rounds: int, ckpt_path: Path | None = None) -> Any:
        data = Weighted(quadratic_clients([1.0, 1.0], [0.0, 1.0]), weights.clone())
        return fit(FedAvg(1.0, seed=1), Quadratic(0.5), data, rounds, ckpt_path=ckpt_path)

    run(1).save_checkpoint(tmp_path / "one.ckpt")
    with caplog.at_level("INFO"):
        assert run(2, tmp_path / "one.ckpt").current_epoch == 2
    assert "other settings" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_the_bytes_of_ordinary_tensors_are_those_of_numpy(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    for tensor in (values, values.T, values[:, 1], values[0, 0], values[:0]):
        assert tensor_bytes(tensor).tobytes() == tensor.numpy().tobytes()


def test_bytes_by_hand() -> None:
    assert tensor_bytes(torch.tensor([1.0, -2.0], dtype=torch.bfloat16)).tobytes() == b"\x80\x3f\x00\xc0"
    assert tensor_bytes(torch.tensor([1j]).conj()).tobytes() == b"\0\0\0\0\0\0\x80\xbf"
    coordinates = torch.tensor([[0, 1, 0]])
    twice = torch.sparse_coo_tensor(coordinates, torch.tensor([2, 3, 4], dtype=torch.int16), (2,))  # 6 and 3
    assert tensor_bytes(twice).tobytes() == b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x06\0\x03\0"
    assert tensor_bytes(torch.empty(3, device="meta")).tobytes() == b""


def test_sparse_data_have_a_fingerprint() -> None:
    assert fingerprint([thirds(1.0, 2.0)]) == fingerprint([thirds(1.0, 2.0)]) != fingerprint([thirds(1.0, 3.0)])
    assert (
        fingerprint([torch.zeros(2)]) == hashlib.blake2b(b"(2,) torch.float32;" + bytes(8), digest_size=16).hexdigest()
    )
