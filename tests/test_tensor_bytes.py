"""Digests of tensors: every type and layout has bytes, and those of ordinary tensors are numpy's."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from fl_lightning.data.source import fingerprint
from fl_lightning.data.tensor_bytes import tensor_bytes


def thirds(*numbers: float) -> Tensor:
    """Return a sparse tensor of six numbers, of which every third one may differ from 0."""
    places = torch.arange(0, 3 * len(numbers), 3)[None]
    return torch.sparse_coo_tensor(places, torch.tensor(numbers), (3 * len(numbers),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_the_bytes_of_ordinary_tensors_are_those_of_numpy(dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    for tensor in (values, values.T, values[:, 1], values[0, 0], values[:0]):
        array = tensor.numpy()
        assert tensor_bytes(tensor).tobytes() == array.tobytes()


def test_bytes_by_hand() -> None:
    assert tensor_bytes(torch.tensor([1.0, -2.0], dtype=torch.bfloat16)).tobytes() == b"\x80\x3f\x00\xc0"
    assert tensor_bytes(torch.tensor([1j]).conj()).tobytes() == b"\0\0\0\0\0\0\x80\xbf"
    coordinates = torch.tensor([[0, 1, 0]])
    twice = torch.sparse_coo_tensor(coordinates, torch.tensor([2, 3, 4], dtype=torch.int16), (2,))  # 6 and 3
    assert tensor_bytes(twice).tobytes() == b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x06\0\x03\0"
    assert tensor_bytes(torch.quantize_per_tensor(torch.tensor([1.0]), 0.5, 0, torch.quint8)).tobytes() == b"\0\0\x80?"
    assert tensor_bytes(torch.empty(3, device="meta")).tobytes() == b""
    nested = torch.nested.nested_tensor([torch.tensor([1], dtype=torch.uint8), torch.tensor([2, 3], dtype=torch.uint8)])
    assert tensor_bytes(nested).tobytes() == b"\x01\x02\x03"


def test_sparse_data_have_a_fingerprint() -> None:
    assert fingerprint([thirds(1.0, 2.0)]) == fingerprint([thirds(1.0, 2.0)]) != fingerprint([thirds(1.0, 3.0)])
    assert (
        fingerprint([torch.zeros(2)]) == hashlib.blake2b(b"(2,) torch.float32;" + bytes(8), digest_size=16).hexdigest()
    )
