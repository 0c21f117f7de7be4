"""A digest of the pickle of an object, which is never in memory as a whole."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from torch import Tensor

from fl_lightning.data.tensor_bytes import tensor_bytes


def pickle_digest(value: object) -> bytes | None:
    """Return a digest of what another process would be sent of a value; ``None`` if it cannot be pickled.

    Equal digests mean equal values. The digests of equal values may differ, as those of two sets do that were filled in
    another order.
    """
    pickler = _Pickler(_Digest())
    try:
        pickler.dump(value)
    except Exception:  # whatever an object raises
        return None
    return pickler.digest.value()


class _Digest:
    """A file for writing that keeps the digest of its content alone."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def write(self, data: bytes | memoryview) -> int:
        """Take some bytes."""
        self._hash.update(data)
        return memoryview(data).nbytes

    def value(self) -> bytes:
        """Return the digest of all bytes so far."""
        return self._hash.digest()


class _Pickler(pickle.Pickler):
    """Pickles into a digest; the numbers of arrays and tensors are not copied."""

    def __init__(self, digest: _Digest) -> None:
        self.digest = digest
        super().__init__(digest, protocol=5, buffer_callback=self._take)

    def _take(self, buffer: pickle.PickleBuffer) -> None:
        self.digest.write(buffer.raw())

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor is written; all other objects are written as ever."""
        if type(value) is not Tensor:
            return NotImplemented
        self.digest.write(tensor_bytes(value))
        kind = f"{tuple(value.shape)} {value.dtype} {value.layout} {value.device} {value.requires_grad}"
        return str, (kind,), value.__dict__ or None
