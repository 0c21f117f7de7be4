"""Training samples that clients have in some rounds and not in others.

A client's samples are a pure function of the round. So a resumed fit needs no state of the data. With three classes, of
which one arrives every ten rounds::

    rounds 0 to 9      stage 0: clients have their samples of the first class
    rounds 10 to 19    stage 1: and those of the second class
    from round 20 on   stage 2: all their samples
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fl_lightning.settings import Count, Natural, check_fields
from fl_lightning.signatures import ShowsArguments
from fl_lightning.vectors import to_indices

if TYPE_CHECKING:
    from fl_lightning.data.datamodule import FederatedDataModule


@dataclass(eq=False, repr=False)
class Changes(ShowsArguments, ABC):
    """Says which training samples each client has in a round. To write one, define :meth:`samples`.

    Rounds are cut into stages; the samples of a stage are a pure function of its number. A client without samples in a
    round cannot be reached. Validation and test samples stay as they are.

    Args:
        every: Rounds of a stage.

    Raises:
        ValueError: If ``every`` is below 1.

    Example:
        >>> import torch
        >>> from fl_lightning import TensorDataModule
        >>> class Halves(Changes):
        ...     def samples(self, stage, clients, labels):
        ...         return [np.array_split(held, 2)[stage % 2] for held in clients]
        >>> x, y = torch.randn(8, 3), torch.arange(8) % 2
        >>> data = TensorDataModule([(x, y)], batch_size=4, changes=Halves(every=5))
    """

    every: Count

    def __post_init__(self) -> None:
        check_fields(self)

    def stage(self, round_index: int) -> int:
        """Return the stage of a round; both are counted from 0."""
        return round_index // self.every

    @abstractmethod
    def samples(self, stage: int, clients: Sequence[np.ndarray], labels: np.ndarray | None) -> Sequence[np.ndarray]:
        """Return the samples of each client in a stage.

        Args:
            stage: The stage, from 0.
            clients: The training samples of each client by the partition and the split, as indices of the source.
            labels: Class of each sample of the source, if there are classes.

        Returns:
            Indices for each client, in its order. Each must be in ``clients``, of whichever client, and none may occur
            twice. Samples may be left out.
        """

    def checked(self, stage: int, clients: Sequence[np.ndarray], labels: np.ndarray | None) -> list[np.ndarray]:
        """Return what :meth:`samples` returns, as int64.

        Raises:
            TypeError: If it returns no whole numbers.
            ValueError: If it does not return distinct training samples of each client.
        """
        name = f"{type(self).__name__}.samples"
        given = self.samples(stage, clients, labels)
        held = [to_indices(name, indices) for indices in given]
        number = sum(map(len, held))
        # Each distinct training sample is found once.
        if len(held) != len(clients) or len(np.intersect1d(np.concatenate(held), np.concatenate(clients))) < number:
            raise ValueError(
                f"`{name}` must return indices for each of the {len(clients)} clients, all of training samples and "
                f"none twice; in stage {stage} it returned {number} indices of {len(held)} clients."
            )
        return held


@dataclass(eq=False, repr=False)
class ClassArrival(Changes):
    """Classes arrive one after the other (class-incremental learning).

    A client that has no sample of the classes so far cannot be reached.

    Args:
        every: Rounds of a stage.
        classes: Classes that arrive with a stage.
        keep: Whether clients keep the samples of earlier classes. From the last class on nothing changes.
        seed: Seed of the order in which classes arrive; ``None``: in ascending order.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if samples have no classes.

    Example:
        >>> import torch
        >>> from fl_lightning import TensorDataModule
        >>> clients = [(torch.randn(n, 3), torch.arange(n) % 3) for n in (4, 6, 8)]
        >>> data = TensorDataModule(clients, batch_size=4, changes=ClassArrival(every=10))
    """

    classes: Count = 1
    keep: bool = True
    seed: Natural | None = None

    @override
    def samples(self, stage: int, clients: Sequence[np.ndarray], labels: np.ndarray | None) -> Sequence[np.ndarray]:
        """Return each client's samples of the classes of the stage."""
        if labels is None:
            raise ValueError("`changes=ClassArrival(...)` needs the class of each sample: the `labels` of a Source.")
        order = np.unique(labels[np.concatenate(clients)])
        if self.seed is not None:
            order = np.random.default_rng(self.seed).permutation(order)
        last_stage = (len(order) - 1) // self.classes
        begin = min(stage, last_stage) * self.classes
        end = begin + self.classes
        present = order[0 if self.keep else begin : end]
        return [held[np.isin(labels[held], present)] for held in clients]


@dataclass(eq=False, repr=False)
class ClientRotation(Changes):
    """Clients' distributions rotate: in stage s client k has the samples that client k + s step had at first.

    All clients together have the same samples in each stage. Where their class mixes differ, this is a drift of labels
    at each client.

    Args:
        every: Rounds of a stage.
        step: How many clients further the samples of the next stage lie.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> import torch
        >>> from fl_lightning import TensorDataModule
        >>> clients = [(torch.randn(n, 3), torch.arange(n) % 2) for n in (4, 6, 8)]
        >>> data = TensorDataModule(clients, batch_size=4, changes=ClientRotation(every=5))
    """

    step: Count = 1

    @override
    def samples(self, stage: int, clients: Sequence[np.ndarray], labels: np.ndarray | None) -> Sequence[np.ndarray]:
        """Return for each client the samples of the one that lies further."""
        number = len(clients)
        return [clients[(client + stage * self.step) % number] for client in range(number)]


def check_changes(changes: Changes, data: FederatedDataModule) -> None:
    """Raise ``ValueError`` for what is done to the samples of a client, of which others may get some later.

    Args:
        changes: The changes.
        data: The data module that has them.
    """
    done_to_clients = {
        "poison_with": bool(data.poisons),
        "feature_noise": bool(data.feature_noise),
        'standardize="local"': data.standardize == "local",
        'impute="local"': data.impute == "local",
    }
    for name, is_done in done_to_clients.items():
        if is_done:
            raise ValueError(
                f"`changes` cannot be given with `{name}`, which is done to a client's samples before the first "
                f"round; got {changes!r}. Leave out one of the two."
            )
