"""Images that stay bytes in memory and are converted, normalised and augmented a batch at a time on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.partitioners.base import PartitionFunction
from fl_lightning.settings import Finite, Positive, check, check_arguments
from fl_lightning.words import short_repr

Unit = Annotated[float, "[0, 1]"]
PaddingMode = Literal["constant", "reflect"]


class ImageDataModule(FederatedDataModule):
    """Serves images held as bytes, shape (N, C, H, W), with their labels.

    A subclass reads them in ``load`` as ``TensorDataset(images, labels)`` and gives each channel's ``mean`` and ``std``
    after division by 255. ``train_transform`` and ``eval_transform`` get the bytes of one image, shape (C, H, W).

    Args:
        partitioner: Distributes the samples among clients.
        augment: Whether training images are flipped and shifted at random, by ``crop_padding`` pixels at most.
        crop_probability: Share of the training images that ``augment`` shifts, in [0, 1].
        crop_padding_mode: What comes into a shifted image, by torchvision's names: zeros if ``"constant"``; if
            ``"reflect"`` the image, mirrored at its edge, whose own pixels are not repeated.
        **options: Further arguments of :class:`FederatedDataModule`. ``standardize``, ``impute`` and ``feature_noise``
            do not suit bytes.

    Raises:
        ValueError: If ``crop_probability`` or ``crop_padding_mode`` is not allowed or given without ``augment``; in
            training, if an image is too small to be mirrored, with ``crop_padding`` pixels or fewer.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from fl_lightning.data import Source, WithinClientSplit
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> class Gray(ImageDataModule):
        ...     mean, std = (0.5,), (0.5,)
        ...     def load(self):
        ...         return Source(TensorDataset(torch.full((6, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(6)))
        >>> data = Gray(IIDPartitioner(2), split=WithinClientSplit(0.0, 0.0))
        >>> data.setup()
        >>> x, y = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
        >>> x.dtype, x.max().item()
        (torch.float32, 1.0)
    """

    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    crop_padding: ClassVar[int] = 4
    stacks: ClassVar[bool] = True
    """Clients may be stacked though a hook sees their batches: it keeps nothing of one client for the next."""

    def __init__(
        self,
        partitioner: PartitionFunction | None = None,
        *,
        augment: bool = False,
        crop_probability: Unit = 1.0,
        crop_padding_mode: PaddingMode = "constant",
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        self.augment = augment
        self.crop_probability = crop_probability
        self.crop_padding_mode = crop_padding_mode
        check_arguments(self)
        if crop_probability != 1 and not augment:
            raise ValueError(f"`crop_probability` is for `augment=True`, got {crop_probability} without it.")
        if crop_padding_mode != "constant" and not augment:
            raise ValueError(f"`crop_padding_mode` is for `augment=True`, got {crop_padding_mode!r} without it.")
        self._normalization: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @property
    def augmented(self) -> bool:
        """Whether a sample's input may differ from the source's, or from one epoch to the next."""
        return self.augment or super().augmented

    def preprocess(self, x: Tensor, training: bool) -> Tensor:
        """Return a batch of images ready for the module: float32, normalised, augmented for training.

        The arithmetic is that of torchvision's ``ToTensor`` and ``Normalize``. Augmentation draws from torch's global
        generator of the batch's device.

        Args:
            x: Images, uint8, shape (n, C, H, W).
            training: Whether the batch is one to train on.
        """
        if training and self.augment:
            x = random_crop_and_flip(x, self.crop_padding, self.crop_probability, self.crop_padding_mode)
        mean, std = self._statistics_on(x.device)
        return x.to(torch.float32, copy=True).div_(255).sub_(mean).div_(std)

    def served(self, x: Tensor) -> Tensor:
        """Return images as a module gets them in an evaluation."""
        return self.preprocess(x, training=False)

    def stored(self, x: Tensor) -> Tensor:
        """Return what :meth:`served` made as bytes; raise ``ValueError`` for what they cannot hold."""
        mean, std = self._statistics_on(x.device)
        levels = (x * std + mean).mul_(255).round_()
        if levels.numel() and not 0 <= levels.min() <= levels.max() <= 255:
            lowest = (0 - mean) / std
            highest = (1 - mean) / std
            raise ValueError(
                f"`value` of a poison must be from {lowest.max():.4g} to {highest.min():.4g}, what the bytes of the "
                f"images can hold after normalisation, got inputs from {x.min():.4g} to {x.max():.4g}."
            )
        return levels.to(torch.uint8)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Preprocess a batch on its device; replaced inputs stay as they are."""
        if self.inputs_replaced:
            return batch
        x, *others = batch
        trainer = self.trainer
        x = self.preprocess(x, training=trainer is not None and trainer.training)
        # The precision plugin converted the batch's floats when the images were still bytes.
        if trainer is not None:
            x = trainer.precision_plugin.convert_input(x)
        return [x, *others]

    def _statistics_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._normalization:
            mean = torch.tensor(self.mean, device=device).view(-1, 1, 1)
            std = torch.tensor(self.std, device=device).view(-1, 1, 1)
            self._normalization[device] = mean, std
        return self._normalization[device]


def random_crop_and_flip(
    x: Tensor, padding: int, probability: float = 1.0, padding_mode: PaddingMode = "constant"
) -> Tensor:
    """Return each image flipped left to right with probability 1/2 and shifted at random.

    The same as a random crop of the padded image; every one of the (2 padding + 1)² positions is equally likely.

    Args:
        x: Images, shape (n, C, H, W).
        padding: Largest shift in pixels, in each direction.
        probability: That of an image being shifted; otherwise it stays in its place.
        padding_mode: What comes into a shifted image: zeros, or the image mirrored at its edge.

    Raises:
        ValueError: If an image is too small to be mirrored.
    """
    n, channels, height, width = x.shape
    if padding_mode == "reflect" and padding >= min(height, width):
        raise ValueError(
            f"`crop_padding_mode='reflect'` needs images of more than {padding} pixels in height and width, "
            f"got {height}x{width}."
        )
    shifts = torch.randint(2 * padding + 1, (2, n, 1), device=x.device)
    top = shifts[0]
    left = shifts[1]
    if probability < 1:
        stays = torch.rand(n, 1, device=x.device) >= probability
        top = top.masked_fill(stays, padding)
        left = left.masked_fill(stays, padding)
    flipped = torch.rand(n, 1, device=x.device) < 0.5
    rows = top + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    columns = left + torch.where(flipped, columns.flip(0), columns)
    if padding_mode == "reflect":
        # Every pixel of a mirrored edge is one of the image, which needs no padding then.
        source = x
        rows = _mirrored(rows - padding, height)
        columns = _mirrored(columns - padding, width)
    else:
        source = F.pad(x, (padding, padding, padding, padding))
    # One gather of pixels takes a quarter of the time of indexing with four index tensors.
    pixels = rows.unsqueeze(2) * source.shape[3] + columns.unsqueeze(1)
    pixels = pixels.view(n, 1, -1).expand(-1, channels, -1)
    return source.reshape(n, channels, -1).gather(2, pixels).view(x.shape)


def _mirrored(positions: Tensor, length: int) -> Tensor:
    """Return which of `length` pixels lies at each position, if those beyond the edges mirror the ones within."""
    last = length - 1
    return last - (last - positions.abs()).abs()


def channel_numbers(name: str, values: Sequence[float], channels: int | None = None) -> tuple[float, ...]:
    """Return the mean or standard deviation of each channel, or one for all.

    Args:
        name: ``"mean"`` or ``"std"``.
        values: The numbers.
        channels: How many channels there are, if that is known.

    Raises:
        TypeError: If they are not a sequence.
        ValueError: If they are not finite numbers, not one for each channel or for all, or a standard deviation is not
            greater than 0.
    """
    if isinstance(values, Tensor):
        values = values.tolist()
    kind = Sequence[Positive] if name == "std" else Sequence[Finite]
    numbers = check(f"`{name}`", values, kind)
    is_one_for_all = len(numbers) == 1
    is_one_for_each = len(numbers) == channels if channels else len(numbers) > 0
    if not is_one_for_all and not is_one_for_each:
        wanted = f"each of the {channels} channels" if channels else "each channel"
        raise ValueError(f"`{name}` must have a number for {wanted}, or one for all, got {short_repr(values)}.")
    return tuple(float(number) for number in numbers)
