"""Parameters that stay with the client: personal layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fl_lightning.arguments import check_names
from fl_lightning.parts.client_states import ClientStates, states_of_fit
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation, Task


class PersonalParameters(Exchange):
    """Keeps a part of the model on each client, which continues from its own values (FedPer, FedBN).

    Arivazhagan et al. 2019 (FedPer) keep the last layers, Li et al. 2021 (FedBN) the normalisation layers. The server
    never sees these values. In the model that is validated and checkpointed they are the mean over all clients.
    With ``"*"`` each client trains its whole model alone: local training, as a baseline.

    Args:
        pattern: Which tensors are personal: names of parameters or buffers, of submodules (``"head"``), or shell
            patterns of names (``"*.bn*"``); one or a list. ``"*"`` is the whole model.

    Raises:
        TypeError: If a pattern is not a text.
        ValueError: If there is no pattern; when the fit begins, if one matches nothing, or if patterns other than
            ``"*"`` make all parameters personal.
    """

    def __init__(self, pattern: str | Sequence[str]) -> None:
        patterns = [pattern] if isinstance(pattern, str) else pattern
        check_names("pattern", patterns, 'They are names of submodules or parameters, such as "head".')
        self.pattern = list(patterns)

    def on_fit_start(self, federation: Federation) -> None:
        """Give every client the first model's values."""
        self._names = set(federation.matching(self.pattern))
        mask = federation.mask(sorted(self._names))
        if bool(mask[: federation.num_parameters].all()) and self.pattern != ["*"]:
            raise ValueError(
                f"`pattern` {self.pattern!r} makes all trained parameters personal, so nothing would be learned "
                'together. Leave some out, or give "*" if each client is to train alone, as a baseline.'
            )
        self._places = mask.nonzero().squeeze(1)
        self._first = federation.model[self._places]
        self.states = ClientStates(federation, self._first)

    def download(self, task: Task, model: Tensor) -> Tensor:
        """Return the model that is sent, with the client's own values."""
        return self._insert(model, states_of_fit(self.states)[task.client])

    def upload(self, result: ClientResult) -> ClientResult:
        """Keep the client's values; the server sees the first model's, and no change."""
        states_of_fit(self.states).put(result.task.client, result.vector[self._places])
        start, vector = (self._insert(model, self._first) for model in (result.start, result.vector))
        return replace(result, start=start, vector=vector)

    def published(self, model: Tensor) -> Tensor:
        """Return the server's model with the mean of all clients' values."""
        return self._insert(model, states_of_fit(self.states).mean)

    def _insert(self, model: Tensor, values: Tensor) -> Tensor:
        return model.index_copy(0, self._places, values.to(model.dtype))

    def travels(self, name: str) -> bool:
        """Return false for personal tensors."""
        return name not in self._names

    def of_client(self, client: int) -> dict[str, Tensor]:
        """Return a client's personal tensors by name, as of the last round's end.

        Raises:
            RuntimeError: Before the fit has begun; with several processes, on others than ``client % num_ranks``, on
                which the client's values live, unless models circulate.
        """
        federation = self.federation
        model = self._insert(federation.model, states_of_fit(self.states)[client])
        return {name: view for name, view in federation.tensors(model).items() if name in self._names}
