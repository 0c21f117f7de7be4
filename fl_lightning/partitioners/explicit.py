"""A partition that is already known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from fl_lightning.partitioners.partition import Partition


class ExplicitPartitioner:
    """Gives each client the samples that the user names.

    Indices count the samples that the partitioner is given, so a split that sets samples aside first, such as
    ``SampleSplit``, changes their meaning; ``ClientSplit`` and ``WithinClientSplit`` do not.

    Args:
        assignment: Sample indices of each client: a partition, the path of a file that ``Partition.save`` has written,
            a list with one array for each client, or a mapping whose clients are numbered in the order of its sorted
            keys.

    Raises:
        TypeError: If an array does not hold integers, or the keys of a mapping cannot be sorted.
        FileNotFoundError: If there is no such file.
        ValueError: If they make no partition; on call, if a sample does not exist or a client has none.
    """

    def __init__(
        self,
        assignment: Partition | str | os.PathLike[str] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]],
    ) -> None:
        self.partition = _as_partition(assignment)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.partition!r})"

    def __call__(self, labels: np.ndarray) -> Partition:
        """Return the partition; of the labels, shape (num_samples,), only their number matters."""
        last = max(int(indices.max(initial=-1)) for indices in self.partition.indices)
        if last >= len(labels):
            raise ValueError(
                f"`assignment` has sample {last:,}, but there are only {len(labels):,} samples. Give an assignment of "
                "this data set, and a split that sets no samples aside beforehand."
            )
        if self.partition.sizes.min() == 0:
            raise ValueError(
                f"`assignment` leaves client {int(self.partition.sizes.argmin())} without samples. Leave it out."
            )
        return self.partition


def _as_partition(
    assignment: Partition | str | os.PathLike[str] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]],
) -> Partition:
    if isinstance(assignment, Partition):
        return assignment
    if isinstance(assignment, str) and not assignment:
        raise ValueError("`assignment` must not be an empty path. Give a file that `Partition.save` has written.")
    if isinstance(assignment, (str, os.PathLike)):
        try:
            return Partition.load(assignment)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"`assignment` is {str(assignment)!r}, but there is no such file.") from error
    try:
        clients = [assignment[key] for key in sorted(assignment)] if isinstance(assignment, Mapping) else assignment
        # numpy would take an empty list for floats
        arrays = tuple(np.asarray(client) if len(client) else np.array([], dtype=np.int64) for client in clients)
    except TypeError as error:
        raise TypeError(
            "`assignment` must be a partition, a path, a list with one array of sample indices for each client, or a "
            f"mapping of such with keys that can be sorted, got {type(assignment).__name__} ({error})."
        ) from error
    try:
        return Partition(arrays)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`assignment` is no valid partition: {error}") from error
