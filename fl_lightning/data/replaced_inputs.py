"""Features that replace a data module's inputs for one stage, such as those of a frozen prefix."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.source import Source, fingerprint


class ReplacedInputs(ABC):
    """The part of a data module that can serve other inputs than its source's."""

    _features: TensorDataset | None = None
    _fingerprint: str | None = None

    @abstractmethod
    def _ready(self) -> tuple[Source, FederatedSplit]:
        """Return the source and the samples of each client."""

    @abstractmethod
    def _tensors_of(self, source: Source) -> tuple[Tensor, ...]:
        """Return the tensors of all samples, inputs first."""

    @property
    def inputs_replaced(self) -> bool:
        """Whether batches hold replaced inputs."""
        return self._features is not None

    def source_inputs(self) -> Tensor:
        """Return the inputs of all samples, shape (N, ...), as batches hold them unless replaced."""
        return self._tensors_of(self._ready()[0])[0]

    def replace_inputs(self, features: Tensor) -> None:
        """Serve ``features``, shape (N, ...), in place of the inputs until the Trainer's present stage ends.

        Raises:
            ValueError: If ``features`` are not one row per source input.
        """
        x, *rest = self._tensors_of(self._ready()[0])
        if len(features) != len(x):
            raise ValueError(
                f"`features` must have one row per source input, {len(x)} rows, got {len(features)}. Compute them "
                "from `source_inputs()`, in its order."
            )
        self._features = TensorDataset(features, *rest)

    def data_fingerprint(self) -> str:
        """Return a text that changes with the shape, type or content of the source's tensors."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self._tensors_of(self._ready()[0]))
        return self._fingerprint

    def teardown(self, stage: str | None = None) -> None:
        """Serve the source's own inputs again: features suit the module of one stage."""
        self._features = None

    def on_exception(self, exception: BaseException) -> None:
        """Serve the source's own inputs again: no teardown follows an exception."""
        self._features = None
