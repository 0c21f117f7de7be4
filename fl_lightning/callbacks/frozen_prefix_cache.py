"""Training from stored outputs of a network's frozen first part."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import lightning as L
import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from fl_lightning.checks import Count, PathLike, check
from fl_lightning.data.tensor_bytes import tensor_bytes
from fl_lightning.files import atomic_file, reserve

_FORMAT = "1"  # part of every file's key: raise it when what a file holds changes
_PROBES = 64  # samples whose preprocessed values stand for the preprocessing in the key


@runtime_checkable
class CacheableInputs(Protocol):
    """What :class:`FrozenPrefixCache` needs of a data module.

    A data module that also has ``preprocess(x, training: bool)`` has it applied before the prefix; batches of replaced
    inputs must come without it.
    """

    @property
    def augmented(self) -> bool:
        """Whether a sample's input may differ from one epoch to the next."""

    def source_inputs(self) -> Tensor:
        """All inputs as read, of shape (samples, ...), before preprocessing; the same after a replacement."""

    def replace_inputs(self, features: Tensor) -> None:
        """Serve ``features``, of shape (samples, ...), one row per source input, in place of the inputs."""

    def data_fingerprint(self) -> str:
        """A text that changes with the data."""


class Prefix(Protocol):
    """The frozen first part of a network, a :class:`~fl_lightning.models.frozen.FrozenPrefix`.

    Attributes:
        bypass: Whether inputs are passed on unchanged.
    """

    bypass: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs for inputs of shape (batch, ...)."""
        ...

    def to(self, device: torch.device) -> Self:
        """Return the layers on a device."""
        ...

    def fingerprint(self) -> str:
        """Return a text that changes with weights, buffers and settings."""
        ...


class FrozenPrefixCache(L.Callback):
    """Computes a module's :class:`~fl_lightning.models.frozen.FrozenPrefix` once for all data, and trains from that.

    When a stage sets up, the callback computes the prefix's outputs for all samples of the data module and stores them
    in a file, or reads the file of an earlier run (memory-mapped). The data module then serves these outputs as its
    inputs, and the prefix passes them on until the stage ends. This works in ``fit``, ``validate``, ``test`` and
    ``predict``, with an aggregation callback or without one.

    The trained weights are those of a run without the callback, to rounding. On a CPU they are the same bit for bit
    where :class:`~fl_lightning.models.frozen.FrozenPrefix` gives a sample the same output in any batch, as it does with
    32-bit convolutions. Features stored with another number of threads, or by a GPU, may differ by rounding.

    Outputs are stored in the prefix's own precision, usually 32-bit, even if ``Trainer(precision="16-mixed")`` would
    compute them in half precision. The ``"true"`` half and double precisions convert the prefix after set-up and raise
    an error.

    A file's name depends on the prefix's weights and settings, the data, the preprocessing, the kind of device and
    PyTorch's version, so that a change of any of them computes a new file. A file that cannot be read is
    computed again. Old files can be deleted at any time. A file holds 4 bytes per output: for 60,000 images and
    MobileNetV2's prefix 345 MB at 96 pixels.

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

    def __init__(self, cache_dir: str | os.PathLike[str] = ".cache/fl_lightning", batch_size: int = 32) -> None:
        check("`cache_dir`", cache_dir, PathLike)
        check("`batch_size`", batch_size, Count)
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
        if trainer.is_global_zero:
            self._ensure(path, prefix, data, device)
        trainer.strategy.barrier("frozen_prefix_cache")
        # Other processes find the file, unless their machine does not share the folder with the first one's.
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
        self._refuse_changed(pl_module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise ``RuntimeError`` if the prefix has changed since set-up."""
        self._refuse_changed(pl_module)

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise ``RuntimeError`` if the prefix has changed since set-up."""
        self._refuse_changed(pl_module)

    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise ``RuntimeError`` if the prefix has changed since set-up."""
        self._refuse_changed(pl_module)

    def _refuse_changed(self, pl_module: L.LightningModule) -> None:
        # Lightning loads a checkpoint after set-up, when the features stand.
        if _find_prefix(pl_module).fingerprint() != self._fingerprint:
            raise RuntimeError(
                "FrozenPrefixCache: the FrozenPrefix's weights have changed since the features were computed. If "
                "ckpt_path loaded other weights, build the module with the checkpoint's weights first "
                "(load_from_checkpoint). Use a 32-bit or mixed precision. Otherwise remove FrozenPrefixCache."
            )

    def _ensure(self, path: Path, prefix: Prefix, data: CacheableInputs, device: torch.device) -> Tensor:
        """Return the features of the file; compute it first if there is none that can be read."""
        if path.exists():
            try:
                return _read(path)
            except (ValueError, EOFError) as error:
                warnings.warn(f"FrozenPrefixCache: {path} is damaged ({error}). It is computed again.", stacklevel=2)
        self._compute(path, prefix, data, device)
        return _read(path)

    def _compute(self, path: Path, prefix: Prefix, data: CacheableInputs, device: torch.device) -> None:
        worker = copy.deepcopy(prefix).to(device)  # the module itself is still where its maker left it
        worker.bypass = False
        inputs = data.source_inputs()
        prepare = _preprocessing(data)
        first = worker(prepare(inputs[:1]).to(device)).cpu().numpy()
        with atomic_file(path) as partial:
            rows = _create(partial, first.dtype, (len(inputs), *first.shape[1:]))
            with tqdm(total=len(inputs), desc="Frozen prefix", unit="sample") as progress:
                for start in range(0, len(inputs), self.batch_size):
                    outputs = worker(prepare(inputs[start : start + self.batch_size]).to(device))
                    rows[start : start + len(outputs)] = outputs.cpu().numpy()
                    progress.update(len(outputs))
            rows.flush()


def _read(path: Path) -> Tensor:
    # copied on write: torch wants writable memory, and the file stays as it is
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def _prefixes(module: L.LightningModule) -> list[Prefix]:
    from fl_lightning.models.frozen import FrozenPrefix  # with it come all models, and torchvision

    return [part for part in module.modules() if isinstance(part, FrozenPrefix)]


def _find_prefix(module: L.LightningModule) -> Prefix:
    found = _prefixes(module)
    if len(found) != 1:
        raise ValueError(
            f"FrozenPrefixCache needs a module with exactly one FrozenPrefix; {type(module).__name__} has "
            f"{len(found)}. Wrap the frozen first layers in one fl_lightning.models.frozen.FrozenPrefix, or remove "
            "FrozenPrefixCache."
        )
    return found[0]


def _cacheable(trainer: L.Trainer) -> CacheableInputs:
    data: object = trainer.datamodule
    if not isinstance(data, CacheableInputs):
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


def _preprocessing(data: CacheableInputs) -> Callable[[Tensor], Tensor]:
    preprocess = getattr(data, "preprocess", None)
    if preprocess is None:
        return lambda x: x
    return lambda x: preprocess(x, training=False)


def _key(prefix_fingerprint: str, data: CacheableInputs, device: torch.device) -> str:
    inputs = data.source_inputs()
    # A function cannot be hashed, but what it makes of some samples can.
    spread = torch.linspace(0, len(inputs) - 1, min(_PROBES, len(inputs))).long()
    probe = _preprocessing(data)(inputs[spread])
    digest = hashlib.sha256(tensor_bytes(probe))
    parts = (_FORMAT, prefix_fingerprint, data.data_fingerprint(), device.type, torch.__version__, *inputs.shape)
    digest.update("\n".join(map(str, parts)).encode())
    return digest.hexdigest()[:32]


def _create(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.memmap:
    """Return the rows of a new ``.npy`` file, memory-mapped, for which the disk has room."""
    with path.open("w+b") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        offset = file.tell()
        reserve(file, offset + math.prod(shape) * dtype.itemsize, path)
        return np.memmap(file, dtype, mode="r+", offset=offset, shape=shape)
