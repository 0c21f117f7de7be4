"""The bytes of tensors of every type and layout, and digests of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the numbers of a tensor as bytes, in the order of its elements, shape ``(number of bytes,)``.

    A type that numpy lacks, such as bfloat16, has them, too. The bytes of a sparse tensor are those of the places of
    its numbers and of the numbers. A tensor on the meta device has no bytes.
    """
    if tensor.is_meta:
        return memoryview(b"")
    parts = []
    for part in _strided(tensor.detach().cpu()):
        plain = part.resolve_conj().resolve_neg().contiguous()
        parts.append(plain.flatten().view(torch.uint8))
    # One part is not copied.
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.numpy().data


def _strided(tensor: Tensor) -> list[Tensor]:
    """Return ordinary tensors that hold what a tensor holds."""
    if tensor.layout is torch.strided:
        return [tensor]
    coordinates: Tensor = tensor.to_sparse_coo().coalesce()
    return [coordinates.indices(), coordinates.values()]


def fingerprint(tensors: Sequence[Tensor]) -> str:
    """Return a string of 32 hexadecimal digits that changes with shape, type or content of any tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
