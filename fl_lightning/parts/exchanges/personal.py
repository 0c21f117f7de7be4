"""Parameters that each client keeps (FedPer, FedBN)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.messages import ClientResult, Task


@dataclass(eq=False)
class PersonalParameters(Exchange):
    """Keeps a part of the model on each client, which continues from its own values (FedPer, FedBN).

    Arivazhagan et al. 2019 (FedPer) keep the last layers, Li et al. 2021 (FedBN) the normalisation layers. The server
    never sees these values. In the model that is validated and checkpointed they are the mean over all clients.
    With ``"*"`` each client trains its whole model alone: local training, as a baseline.

    Args:
        pattern: Which tensors are personal: names of parameters or buffers, of submodules (``"head"``), or shell
            patterns of names (``"*.bn*"``); one or a list. ``"*"`` is the whole model.

    Attributes:
        own: Every client's values, shape ``(number of personal values,)``.

    Raises:
        TypeError: If ``pattern`` is no text or list of texts.
        ValueError: When the fit begins, if a pattern matches nothing, or a tensor that several layers share as one of
            only some of them; or if no parameter travels and no exchange has ``"*"``.
    """

    runs_at = "client"
    pattern: Patterns

    @property
    @override
    def shares_nothing(self) -> bool:  # type: ignore[override]
        """Whether each client trains its whole model alone."""
        return self.pattern in ("*", ["*"])

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model's values."""
        self._names = set(federation.matching(self.pattern))
        mask = federation.mask(sorted(self._names))
        self._places = mask.nonzero().squeeze(1)
        self._first = federation.model[self._places]
        self.own: ClientVectors
        self.add_client_vectors("own", self._first)

    @override
    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that is sent, with the client's own values."""
        return self.insert(model, self.own[task.client])

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Keep the client's values; the server sees the first model's, and no change."""
        self.own[result.client] = self.values_in(result.vector)
        return replace(result, received=self.without_kept(result.received), vector=self.without_kept(result.vector))

    @property
    @override
    def changes_updates(self) -> bool:
        return type(self).upload is not PersonalParameters.upload

    @override
    def without_kept(self, model: Tensor) -> Tensor:
        """Return the model with the first model's values."""
        return self.insert(model, self._first)

    @override
    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the model with the client's values."""
        own = self.own.get(client)
        if own is None:
            return None
        return self.insert(model, own)

    @override
    def on_publish(self, model: Tensor) -> Tensor:
        """Return the server's model with the mean of all clients' values."""
        return self.insert(model, self.own.mean)

    @override
    def travels(self, name: str) -> bool:
        """Return false for personal tensors."""
        return name not in self._names

    @override
    def keeps(self, name: str) -> bool:
        """Return true for personal tensors."""
        return name in self._names

    def of_client(self, client: int) -> dict[str, Tensor]:
        """Return a client's personal tensors by name.

        Raises:
            RuntimeError: With several processes, on others than ``client % num_ranks``, on which the client's values
                live, unless models circulate.
        """
        model = self.insert(self.federation.model, self.own[client])
        tensors = self.federation.tensors(model)
        return {name: tensor for name, tensor in tensors.items() if name in self._names}

    def values_in(self, model: Tensor) -> Tensor:
        """Return the personal values of a model, shape ``(number of personal values,)``."""
        return model[self._places]

    def insert(self, model: Tensor, values: Tensor) -> Tensor:
        """Return a model, shape ``(size,)``, with other personal values."""
        return model.index_copy(0, self._places, values.to(model.dtype))
