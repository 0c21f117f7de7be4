"""Changes training samples of some clients on purpose, for studies of robustness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.samples import rows_of
from fl_lightning.data.source import Source
from fl_lightning.settings import Count, Finite, Natural, Share, check_arguments
from fl_lightning.signatures import ShowsArguments
from fl_lightning.vectors import share_of, to_indices


def _same(x: Tensor) -> Tensor:
    return x


class Poison(ShowsArguments, ABC):
    """Changes training samples of chosen clients; evaluation samples stay as they are.

    Args:
        clients: Positions of the clients among those that train, 0 to K-1.

    Raises:
        TypeError: If they are not whole numbers.
        ValueError: If they are not a list.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> class Noise(Poison):
        ...     def changed(self, x, y, rng):
        ...         return x + torch.from_numpy(rng.normal(size=x.shape)).to(x), y
        >>> x, _ = Noise([0]).apply(torch.zeros(2, 1), torch.zeros(2), train=[np.array([0]), np.array([1])])
        >>> (x != 0).flatten().tolist()
        [True, False]
    """

    def __init__(self, clients: Sequence[int]) -> None:
        positions = to_indices("clients", clients).tolist()
        # Each client once, in the given order.
        self.clients: list[int] = list(dict.fromkeys(positions))

    def apply(
        self,
        x: Tensor,
        y: Tensor,
        train: Sequence[np.ndarray],
        served: Callable[[Tensor], Tensor] = _same,
        stored: Callable[[Tensor], Tensor] = _same,
    ) -> tuple[Tensor, Tensor]:
        """Return copies of all samples with those of the chosen clients changed.

        Args:
            x: Inputs, shape (N, ...), as they are stored.
            y: Classes, shape (N,).
            train: Indices of each training client's samples.
            served: Turns stored inputs into those that a module gets, which :meth:`changed` sees.
            stored: Turns them back.

        Raises:
            ValueError: If a client does not exist.
        """
        wrong = [client for client in self.clients if not 0 <= client < len(train)]
        if wrong:
            raise ValueError(
                f"`clients` of {type(self).__name__} must be from 0 to {len(train) - 1}, the clients that train, got "
                f"{wrong}."
            )
        x = x.clone()
        y = y.clone()
        for client in self.clients:
            indices = torch.from_numpy(np.asarray(train[client], dtype=np.int64))
            rng = np.random.default_rng([client, 97])
            changed_x, changed_y = self.changed(served(x[indices]), y[indices], rng)
            x[indices] = stored(changed_x)
            y[indices] = changed_y
        return x, y

    @abstractmethod
    def changed(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return one client's changed inputs, shape (n, ...), and classes, shape (n,).

        The inputs are those that a module gets: after standardisation or normalisation.
        """


class LabelFlipping(Poison):
    """Class c becomes ``num_classes - 1 - c`` (Fang et al. 2020).

    Args:
        clients: Positions of the clients among those that train, 0 to K-1.
        num_classes: Number of classes.

    Raises:
        TypeError: If positions are not whole numbers.
        ValueError: If an argument is out of its range; at set-up, if a class is, or targets are not classes.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> x, y = torch.zeros(4, 1), torch.tensor([0, 1, 2, 0])
        >>> _, flipped = LabelFlipping([1], num_classes=3).apply(x, y, train=[np.array([0, 1]), np.array([2, 3])])
        >>> flipped.tolist()
        [0, 1, 0, 2]
    """

    def __init__(self, clients: Sequence[int], num_classes: Annotated[int, "[2, inf)"]) -> None:
        super().__init__(clients)
        self.num_classes = num_classes
        check_arguments(self)

    def changed(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the flipped classes."""
        _check_classes(self, y)
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.num_classes:
            raise ValueError(
                f"`num_classes` must be larger than every class, got {self.num_classes}; there are classes from "
                f"{int(y.min())} to {int(y.max())}."
            )
        flipped = self.num_classes - 1 - y.long()
        return x, flipped.to(y.dtype)


class Backdoor(Poison):
    """A square in the lower right corner of an image makes its class ``target`` (Gu et al. 2017, BadNets).

    :class:`~fl_lightning.diagnostics.BackdoorSuccess` measures whether the server's model has learned that.

    Args:
        clients: Positions of the clients among those that train, 0 to K-1.
        target: The class.
        fraction: Share of a client's samples that are changed, in (0, 1], rounded down, at least one.
        size: Side of the square, in pixels.
        value: Its brightness, in the units of the inputs after standardisation. In images that are kept as bytes it is
            rounded to the nearest of 256 levels.

    Raises:
        TypeError: If positions are not whole numbers.
        ValueError: If an argument is out of its range; at set-up, if the inputs are not images of that size, are
            whole numbers, or are bytes that cannot hold ``value``, or targets are not classes.

    Example:
        >>> import torch
        >>> backdoor = Backdoor([0], target=1, size=2)
        >>> backdoor.stamped(torch.zeros(1, 3, 3))[0].tolist()
        [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        clients: Sequence[int],
        target: Natural = 0,
        fraction: Share = 0.5,
        size: Count = 4,
        value: Finite = 1.0,
    ) -> None:
        super().__init__(clients)
        self.target = target
        self.fraction = fraction
        self.size = size
        self.value = value
        check_arguments(self)

    def changed(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the samples, a share of them stamped."""
        _check_classes(self, y)
        # Rounded down, but 0.3 * 10 = 2.9999999999999996 to 3.
        number = max(1, int(share_of(self.fraction, len(y))))
        places = torch.from_numpy(rng.permutation(len(y))[:number])
        x[places] = self.stamped(x[places])
        y[places] = self.target
        return x, y

    def stamped(self, x: Tensor) -> Tensor:
        """Return images, shape (n, channels, height, width) or (n, height, width), with the square."""
        if x.ndim < 3 or min(x.shape[-2:]) < self.size or not x.is_floating_point():
            raise ValueError(
                f"`size={self.size}` needs floating-point images of at least {self.size} x {self.size} pixels, got "
                f"{x.dtype} of shape {tuple(x.shape[1:])}. Bytes are converted by an ImageDataModule."
            )
        x = x.clone()
        x[..., -self.size :, -self.size :] = self.value
        return x


def _check_classes(poison: Poison, y: Tensor) -> None:
    """Raise ``ValueError`` unless targets are whole numbers, one for each sample."""
    is_whole = not y.is_floating_point() or torch.equal(y, y.round())
    if not is_whole or y.numel() != len(y):
        raise ValueError(
            f"The targets must be classes for {type(poison).__name__}, whole numbers of shape ({len(y)},) or "
            f"({len(y)}, 1), got {y.dtype} of shape {tuple(y.shape)}. Give `target=` of the data module if they are "
            "another tensor."
        )


def poisoned(
    source: Source,
    split: FederatedSplit,
    poisons: Sequence[Poison],
    outputs_and_targets: Callable[[Any, Any], tuple[Any, Any]],
    served: Callable[[Tensor], Tensor],
    stored: Callable[[Tensor], Tensor],
) -> Source:
    """Return a source with the training samples of poisons' clients changed.

    Args:
        source: All samples.
        split: The samples of each client.
        poisons: The changes, in order.
        outputs_and_targets: Finds the targets among the tensors of all samples.
        served: Returns stored inputs as a module gets them.
        stored: The inverse of ``served``.
    """
    if not poisons:
        return source
    x, *others = [tensor.clone() for tensor in rows_of(source)]
    # The targets are a view of one of the other tensors.
    _, y = outputs_and_targets([x, *others], None)
    train = list(split.train.values())
    for poison in poisons:
        x, changed = poison.apply(x, y, train, served, stored)
        y[:] = changed
    return replace(source, dataset=TensorDataset(x, *others))
