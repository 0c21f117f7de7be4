"""Training from stored outputs of a network's frozen first part."""

from __future__ import annotations

import copy
import hashlib
import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import lightning as L
import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm.auto import tqdm

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.tensor_bytes import tensor_bytes
from fl_lightning.settings import Count, PathLike, check_arguments

if TYPE_CHECKING:
    from fl_lightning.models.frozen import FrozenPrefix

#: Part of every file's key. Raise it when what a file holds changes.
_FORMAT = "2"
#: The length of a block in bytes, and its CRC-32.
_SUM = struct.Struct("<QI")
#: So many samples are preprocessed, and stand for the preprocessing in the key.
_PROBES = 64


class FrozenPrefixCache(L.Callback):
    """Computes a module's :class:`~fl_lightning.models.frozen.FrozenPrefix` once for all data, and trains from that.

    When a stage sets up, the callback computes the prefix's outputs for all samples of the data module and stores them
    in a file, or reads the file of an earlier run (memory-mapped). The data module then serves these outputs as its
    inputs, and the prefix passes them on until the stage ends. This works in ``fit``, ``validate``, ``test`` and
    ``predict``, with an aggregation callback or without one.

    The trained weights are those of a run without the callback, to rounding. On a CPU they are the same bit for bit
    where :class:`~fl_lightning.models.frozen.FrozenPrefix` gives a sample the same output in any batch, as it does with
    32-bit convolutions. Features stored by a GPU may differ by rounding.

    Outputs are stored in the prefix's own precision, usually 32-bit, even if ``Trainer(precision="16-mixed")`` would
    compute them in half precision. The ``"true"`` half and double precisions convert the prefix after set-up and raise
    an error.

    A file's name depends on the prefix's weights and settings, the data, the preprocessing, the kind of device and
    PyTorch's version, so that a change of any of them computes a new file. A run that is killed leaves the outputs that
    it has computed to the next one. Files have checksums, and a damaged one is computed again. Old files can be deleted
    at any time. A file holds 4 bytes per output: for 60,000 images and MobileNetV2's prefix 345 MB at 96 pixels.

    Args:
        cache_dir: Folder of the files; made when needed.
        batch_size: Samples per forward pass while computing.

    Raises:
        ValueError: At set-up, if the module has no :class:`FrozenPrefix` or several, or the data are augmented. Here,
            if ``batch_size`` is below 1.
        TypeError: At set-up, if the trainer has no data module whose inputs can be replaced.
        RuntimeError: If the prefix's weights change after set-up, by a checkpoint or by training.
        OSError: At set-up, if the disk has no room for the file.
    """

    def __init__(self, cache_dir: PathLike = ".cache/fl_lightning", batch_size: Count = 32) -> None:
        check_arguments(self, {"cache_dir": cache_dir, "batch_size": batch_size})
        self.cache_dir = Path(cache_dir)
        self.batch_size = batch_size
        self._fingerprint = ""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Let the data module serve the prefix's outputs; compute them if no file holds them."""
        prefix = _find_prefix(pl_module)
        data = _cacheable(trainer)
        self._fingerprint = prefix.fingerprint()
        device = trainer.strategy.root_device
        path = self.cache_dir / f"frozen-prefix-{_key(self._fingerprint, data, device)}.npy"
        data.replace_inputs(self._ensure(path, prefix, data, device))
        prefix.bypass = True

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Let the module take raw inputs again."""
        _find_prefix(pl_module).bypass = False

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Let the module take raw inputs again: no teardown follows an exception."""
        for prefix in _prefixes(pl_module):
            prefix.bypass = False

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise ``RuntimeError`` if the prefix has changed since set-up."""
        # Lightning loads a checkpoint after set-up, when the features stand.
        if _find_prefix(pl_module).fingerprint() != self._fingerprint:
            raise RuntimeError(
                "FrozenPrefixCache: the FrozenPrefix's weights have changed since the features were computed. If "
                "ckpt_path loaded other weights, build the module with the checkpoint's weights first "
                "(load_from_checkpoint). Use a 32-bit or mixed precision. Otherwise remove FrozenPrefixCache."
            )

    on_validation_start = on_test_start = on_predict_start = on_fit_start

    def _ensure(self, path: Path, prefix: FrozenPrefix, data: FederatedDataModule, device: torch.device) -> Tensor:
        """Return the features of the file; compute it first if there is none that can be read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Other processes, of any run, wait for the file.
        with FileLock(path.with_suffix(".lock")):
            _sums(path).touch()
            if path.exists():
                length, _ = _sound_blocks(path, _sums(path))
                if length == path.stat().st_size > 0:
                    return _read(path)
                text = (
                    f"FrozenPrefixCache: {path} is damaged: it does not agree with its checksums. It is computed again."
                )
                warnings.warn(text, stacklevel=2)
                path.unlink()
            self._compute(path, prefix, data, device)
            return _read(path)

    def _compute(self, path: Path, prefix: FrozenPrefix, data: FederatedDataModule, device: torch.device) -> None:
        """Append the outputs to a file, from where an earlier run stopped, which takes its place when it is whole.

        Each block that is written, the header or the outputs of a batch, has its checksum in a second file. So what a
        power cut has left at the end of the first one is not taken for outputs.
        """
        # The module itself is still where its maker left it.
        worker = copy.deepcopy(prefix).to(device)
        worker.bypass = False
        inputs = data.source_inputs()

        def outputs(start: int, size: int = self.batch_size) -> np.ndarray:
            batch = data.served(inputs[start : start + size])
            found: Tensor = worker(batch.to(device))
            return found.cpu().numpy()

        first = outputs(0, size=1)
        header = _header(first.dtype, (len(inputs), *first.shape[1:]))
        partial = path.with_suffix(".part")
        partial.touch()
        length, blocks = _sound_blocks(partial, _sums(path))
        with partial.open("r+b") as file, _sums(path).open("r+b") as sums:

            def write(block: bytes) -> None:
                file.write(block)
                sums.write(_SUM.pack(len(block), zlib.crc32(block)))

            file.truncate(length)
            file.seek(length)
            sums.truncate(blocks * _SUM.size)
            sums.seek(blocks * _SUM.size)
            if length == 0:
                write(header)
            done = max(0, length - len(header)) // first.nbytes
            with (
                tqdm(total=len(inputs), initial=done, desc="Frozen prefix", unit="sample") as progress,
                _in_parallel(outputs, range(done, len(inputs), self.batch_size), device) as results,
            ):
                for rows in results:
                    write(rows.tobytes())
                    progress.update(len(rows))
        partial.replace(path)


@contextmanager
def _in_parallel(
    function: Callable[[int], np.ndarray], arguments: Sequence[int], device: torch.device
) -> Iterator[Iterator[np.ndarray]]:
    """Yield the results in order; on a CPU each of torch's threads computes whole ones, and none waits for another."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads if device.type == "cpu" else 1)
    # Each worker then computes with one thread.
    torch.set_num_threads(1)
    try:
        yield pool.map(function, arguments)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return how a file of NumPy begins."""
    buffer = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


def _sums(path: Path) -> Path:
    """Return the file with the checksums of a file and of its ``.part``."""
    return path.with_suffix(".sums")


def _sound_blocks(path: Path, sums: Path) -> tuple[int, int]:
    """Return how many bytes from a file's start agree with their checksums, and how many blocks they are."""
    content = sums.read_bytes()
    # The last entry may be cut off.
    num_whole = len(content) // _SUM.size
    length = 0
    blocks = 0
    with path.open("rb") as file:
        for size, checksum in _SUM.iter_unpack(content[: num_whole * _SUM.size]):
            block = file.read(size)
            if zlib.crc32(block) != checksum:
                break
            length += size
            blocks += 1
    return length, blocks


def _read(path: Path) -> Tensor:
    # The pages are copied on write: torch wants writable memory, and the file stays as it is.
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def _prefixes(module: L.LightningModule) -> list[FrozenPrefix]:
    # With this file come all models, and torchvision.
    from fl_lightning.models import frozen

    return [part for part in module.modules() if isinstance(part, frozen.FrozenPrefix)]


def _find_prefix(module: L.LightningModule) -> FrozenPrefix:
    found = _prefixes(module)
    if len(found) != 1:
        raise ValueError(
            f"FrozenPrefixCache needs a module with exactly one FrozenPrefix; {type(module).__name__} has "
            f"{len(found)}. Wrap the frozen first layers in one fl_lightning.models.frozen.FrozenPrefix, or remove "
            "FrozenPrefixCache."
        )
    return found[0]


def _cacheable(trainer: L.Trainer) -> FederatedDataModule:
    data = fit_trainer(trainer).datamodule
    if not isinstance(data, FederatedDataModule):
        raise TypeError(
            f"FrozenPrefixCache needs a FederatedDataModule, whose inputs it can replace; the trainer's datamodule is "
            f"{type(data).__name__}. Pass one as datamodule=..., or remove FrozenPrefixCache."
        )
    if data.augmented:
        raise ValueError(
            f"FrozenPrefixCache: {type(data).__name__} augments its inputs, so that a sample's features differ from "
            f"one epoch to the next and cannot be stored. Turn augmentation off in the data module, or remove "
            "FrozenPrefixCache."
        )
    return data


def _key(prefix_fingerprint: str, data: FederatedDataModule, device: torch.device) -> str:
    inputs = data.source_inputs()
    # A function cannot be hashed, but what it makes of some samples can.
    spread = torch.linspace(0, len(inputs) - 1, min(_PROBES, len(inputs))).long()
    probe = data.served(inputs[spread])
    digest = hashlib.sha256(tensor_bytes(probe))
    parts = (_FORMAT, prefix_fingerprint, data.data_fingerprint(), device.type, torch.__version__, *inputs.shape)
    digest.update("\n".join(map(str, parts)).encode())
    return digest.hexdigest()[:32]
