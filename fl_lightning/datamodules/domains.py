"""Images of several domains, such as photos and sketches, in one folder for each domain and class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset
from tqdm.auto import tqdm

from fl_lightning.data import ImageDataModule, PartitionFunction, Source, Split, WithinClientSplit
from fl_lightning.datamodules.files import as_path, reading
from fl_lightning.partitioners.base import as_partition, check_partitioner
from fl_lightning.settings import Count, check_arguments

#: The endings that torchvision's ``ImageFolder`` reads.
_ENDINGS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}


class DomainDataModule(ImageDataModule):
    """Images whose look differs from client to client, as of PACS, Office-Home, Office-Caltech or DomainNet.

    The files are ``folder/domain/class/image``, such as ``pacs/sketch/dog/n02103406_343-3.png``. Each domain is a
    client. Images are shrunk to squares of ``size`` pixels when they are read, and are normalised by ImageNet's means
    and standard deviations.

    For leave-one-domain-out, ``left_out`` names the domain that tests the model and trains no client. Fit once for each
    domain, and the mean of the scores is what tables of domain generalisation show.

    Args:
        folder: The folder of the domains.
        left_out: The domain that is the test set; ``None`` lets the split decide.
        partitioner: Shares the images of each domain out among several clients, by their classes, such as
            ``DirichletPartitioner(5, alpha=0.5)``; ``None`` makes each domain one client.
        size: Height and width of the images, in pixels.
        split: Who validates, and without ``left_out`` who tests; a tenth of each client's images validates if ``None``,
            and without ``left_out`` another tenth tests.
        augment: Whether training images are flipped and shifted by up to 4 pixels at random.
        **options: Further arguments of :class:`~fl_lightning.data.ImageDataModule`.

    Raises:
        ValueError: If an argument is out of range; at set-up, if there is no domain ``left_out``, or a domain lacks a
            class of another one.
        FileNotFoundError: At set-up, if there is no folder, or there are no images in it.
        RuntimeError: At set-up, if an image cannot be read.

    Example:
        >>> data = DomainDataModule("data/pacs", left_out="sketch", size=64, batch_size=32)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
        >>> trainer.test(module, datamodule=data)  # doctest: +SKIP
    """

    mean: ClassVar[tuple[float, ...]] = (0.485, 0.456, 0.406)
    std: ClassVar[tuple[float, ...]] = (0.229, 0.224, 0.225)
    stored_as: ClassVar[Mapping[str, str]] = {"partitioner": "within_domain"}

    def __init__(
        self,
        folder: str | os.PathLike[str],
        left_out: str | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        size: Count = 224,
        split: Split | None = None,
        augment: bool = False,
        **options: Any,
    ) -> None:
        if split is None:
            split = WithinClientSplit(val=0.1, test=0.1 if left_out is None else 0.0)
        # The base would share the images of all domains out among the same clients.
        super().__init__(None, split=split, augment=augment, **options)
        self.folder = as_path("folder", folder)
        self.left_out = left_out
        if partitioner is not None:
            check_partitioner(partitioner)
        self.within_domain = partitioner
        self.size = size
        check_arguments(self)

    def load(self) -> Source:
        """Read all images as bytes, shape (N, 3, size, size), domain by domain in the order of their names."""
        files = self._files()
        classes = sorted({name for of_domain in files.values() for name in of_domain})
        self._check(files, classes)
        paths: list[Path] = []
        labels: list[int] = []
        clients: list[str] = []
        for domain, of_domain in files.items():
            images = [(path, label) for label, name in enumerate(classes) for path in of_domain[name]]
            for client, indices in self._clients(domain, np.array([label for _, label in images])).items():
                paths += [images[index][0] for index in indices]
                labels += [images[index][1] for index in indices]
                clients += [client] * len(indices)
        test_indices = None
        if self.left_out is not None:
            test_indices = np.flatnonzero(np.array(clients) == self.left_out)
        dataset = TensorDataset(self._read(paths), torch.tensor(labels))
        return Source(dataset, np.array(labels), test_indices, classes, clients=np.array(clients), tests_clients=False)

    def _files(self) -> dict[str, dict[str, list[Path]]]:
        """Return the images of each class of each domain, all in the order of their names."""
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"There is no folder {self.folder}. Put the images into it as domain/class/image, such as "
                f"{self.folder / 'sketch' / 'dog' / '1.png'}."
            )
        files: dict[str, dict[str, list[Path]]] = {}
        for path in sorted(self.folder.glob("*/*/*")):
            if path.suffix.lower() in _ENDINGS:
                domain, name = path.parts[-3:-1]
                files.setdefault(domain, {}).setdefault(name, []).append(path)
        if not files:
            raise FileNotFoundError(
                f"There are no images in {self.folder}. They must lie there as domain/class/image, with one of the "
                f"endings {', '.join(sorted(_ENDINGS))}."
            )
        return files

    def _check(self, files: dict[str, dict[str, list[Path]]], classes: list[str]) -> None:
        for domain, of_domain in files.items():
            missing = [name for name in classes if name not in of_domain]
            if missing:
                raise ValueError(
                    f"The domain {domain!r} in {self.folder} has no images of {', '.join(missing)}, which another "
                    "domain has. Give all domains the same classes, in folders of the same names."
                )
        if self.left_out is not None and self.left_out not in files:
            raise ValueError(
                f"`left_out` must be a domain of {self.folder}, which are {', '.join(files)}, got {self.left_out!r}."
            )
        if self.left_out is not None and len(files) == 1:
            raise ValueError(f"{self.folder} has the domain {self.left_out!r} alone, so `left_out` leaves no client.")

    def _clients(self, domain: str, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the images of a domain that each of its clients holds, by the clients' names."""
        if self.within_domain is None or domain == self.left_out:
            return {domain: np.arange(len(labels))}
        partition = as_partition("partitioner", self.within_domain(labels), len(labels))
        digits = len(str(partition.num_clients - 1))
        return {f"{domain} {client:0{digits}}": indices for client, indices in enumerate(partition.indices)}

    def _read(self, paths: list[Path]) -> torch.Tensor:
        # Pillow comes with torchvision, which is needed for these images alone.
        from PIL import Image

        images = np.empty((len(paths), self.size, self.size, 3), dtype=np.uint8)
        for place, path in enumerate(tqdm(paths, self.folder.name, unit=" images", leave=False, disable=None)):
            with reading(path, "an image"), Image.open(path) as image:
                small = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
                images[place] = np.asarray(small)
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
