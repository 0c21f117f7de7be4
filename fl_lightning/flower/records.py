"""Messages and kept states as Flower's records: arrays and plain values, never a pickle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fl_lightning.words import how_to_install

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict

#: What a record may hold besides arrays.
Plain = int | float | str | bool | list[int] | list[float] | list[str]

_VALUES = "fl-lightning.values"
_ARRAYS = "fl-lightning.arrays"


class Grid(Protocol):
    """Flower's grid, as far as it is used: it sends messages to nodes and returns their replies."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes."""
        ...

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        """Send messages and return the replies that came within so many seconds."""
        ...


class Context(Protocol):
    """Flower's context of a client, as far as it is used.

    Attributes:
        node_config: What the site's ``flower-supernode --node-config`` says.
        state: Records that stay at the site, for one run.
    """

    node_config: Mapping[str, Any]
    state: Any


@dataclass(frozen=True)
class Parcel:
    """Arrays and plain values by name.

    Attributes:
        values: Numbers, texts, and lists of one kind of them.
        arrays: Arrays of numbers.
    """

    values: Mapping[str, Plain]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def to_records(parcel: Parcel) -> RecordDict:
    """Return a parcel as Flower's records.

    Raises:
        ModuleNotFoundError: If Flower is not installed.
    """
    try:
        from flwr import app
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Real clients need Flower 1.42 or later. Install it by `{how_to_install('flower')}`."
        ) from error
    arrays = {name: app.Array(np.ascontiguousarray(array)) for name, array in parcel.arrays.items()}
    return app.RecordDict({_VALUES: app.ConfigRecord(dict(parcel.values)), _ARRAYS: app.ArrayRecord(arrays)})


def from_records(records: Any) -> Parcel | None:
    """Return the parcel in Flower's records; ``None`` if there is none."""
    if _VALUES not in records:
        return None
    array_record: ArrayRecord = records[_ARRAYS]
    arrays = {name: np.array(array.numpy()) for name, array in array_record.items()}
    return Parcel(dict(records[_VALUES]), arrays)


def received(message: Message) -> Parcel:
    """Return the parcel in a message.

    Raises:
        ValueError: If the message is not one of this library's.
    """
    parcel = from_records(message.content)
    if parcel is None:
        raise ValueError("The message is not one of fl-lightning's. Send it by `FlowerClients`.")
    return parcel


def message_to(node: int, kind: str, parcel: Parcel, seconds: float) -> Message:
    """Return a message to a node that is valid for so many seconds."""
    content = to_records(parcel)
    from flwr import app

    return app.Message(content, dst_node_id=node, message_type=kind, ttl=seconds)


def reply_to(message: Message, parcel: Parcel) -> Message:
    """Return the reply to a message."""
    content = to_records(parcel)
    from flwr import app

    return app.Message(content, reply_to=message)
