"""The base of all parts: settings are fields, states are declared, and all hooks are optional."""

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.kept import States
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.seeding import Stream, torch_generator
from fl_lightning.settings import check_fields, checked_in_round
from fl_lightning.words import short_repr

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm
#: Where a part does its work for one client.
Place = Literal["client", "server", "both"]


class Part(States):
    """One part of an algorithm. All hooks are empty, so that an override need not call ``super()``.

    What changes from round to round is declared in :meth:`setup`, by :meth:`add_state` or :meth:`add_client_vectors`.
    It is then reset by a new fit, saved, resumed, and taken back if a round breaks off. A part in an attribute, or in a
    list there, belongs to this one, as a submodule belongs to an ``nn.Module``: its hooks are called and its state is
    saved. Tensors are shared between clients: assign new ones, and write to none.

    Attributes:
        federation: The run, from :meth:`setup` on.
        round: The round under way, from 0.
    """

    #: Whether clients may be stacked though a user-defined part works both before and after a client's training:
    #: nothing that it keeps of one client is for another one.
    stacks = False
    #: Whether nothing of a client leaves it by this part but the updates that pass through the exchanges. A subclass
    #: may let out more, so it does not inherit the answer: each class says so itself. Parts that protect clients ask
    #: :attr:`is_known_to_send_updates_alone`.
    sends_updates_alone: ClassVar[bool] = False
    #: Where what the part does for one client is done, if that client is another machine. ``"client"``: there, and so
    #: are the vectors that it keeps of the client. ``"server"``: here, from what reaches the server. ``"both"``: on
    #: both, each with vectors of its own. ``None``: not known, so that an executor of such clients raises an error. A
    #: subclass may do more, so it does not inherit the answer; ask
    #: :attr:`runs_where`.
    runs_at: ClassVar[Place | None] = None
    #: Whether what it draws for a client must stay unknown to the server, where the client is another machine.
    draws_secretly: ClassVar[bool] = False
    round: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @override
    def __repr__(self) -> str:
        # The order is that of the arguments; a dataclass would show inherited fields first.
        names = [name for name in signature(type(self)).parameters if name in vars(self)]
        shown = ", ".join(f"{name}={short_repr(vars(self)[name])}" for name in names)
        return f"{type(self).__name__}({shown})"

    # ---- hooks ----

    def setup(self, federation: Federation) -> None:
        """Declare the state of a new fit."""

    def check_with(self, algorithm: "Algorithm") -> Iterable[str]:
        """Return, or yield, why the part cannot work with the other parts of an :class:`Algorithm`."""
        return ()

    def on_round_start(self, round_index: int) -> None:
        """Called before a round's clients are drawn; rounds are counted from 0."""

    def on_round_end(self) -> None:
        """Called on all processes when every client of the round is done and the schedule has played."""

    def values(self) -> dict[str, float]:
        """Return what the part logs at a round's end, by name; the same on all processes."""
        return {}

    def model_of(self, client: int, model: Tensor) -> Tensor:
        """Return the server's model for a client, shape ``(size,)``, where the server has several.

        Outside of its training a client receives it to be scored before a draw, and is evaluated with it, or with what
        :meth:`personal` makes of it.

        Args:
            client: The client.
            model: The model that all clients share, shape ``(size,)``.
        """
        return model

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the model by which a client is evaluated, shape ``(size,)``; ``None`` if the part has none of its own.

        Args:
            client: The client; its vectors live on this process.
            model: The server's model of the client, or what earlier parts have made of it.
        """
        return None

    @property
    def has_personal(self) -> bool:
        """Whether clients are evaluated with other models than the one that is shown."""
        return type(self).personal is not Part.personal or type(self).model_of is not Part.model_of

    @property
    def personal_every(self) -> int:
        """Number of rounds from one in which the models of :meth:`personal` are made to the next."""
        return 1

    @property
    def personal_is_current(self) -> bool:
        """Whether the models of :meth:`personal` are those of the last round, not made from an earlier shared model."""
        return True

    @property
    def is_known_to_send_updates_alone(self) -> bool:
        """Whether the part's own class says :attr:`sends_updates_alone`."""
        return bool(vars(type(self)).get("sends_updates_alone", False))

    @property
    def runs_where(self) -> Place | None:
        """What the part's own class says in :attr:`runs_at`."""
        where: Place | None = vars(type(self)).get("runs_at")
        return where

    # ---- a client that is another machine ----

    def state_down(self, task: Task) -> dict[str, Tensor]:
        """Return what the server's part tells that of the task's client besides the model, by name.

        It is asked where the part runs on both sides; what it returns reaches :meth:`take_state_down` there.
        """
        return {}

    def take_state_down(self, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state_down` returned at the server, at the client before a round."""

    def state_up(self, result: ClientResult) -> dict[str, Tensor]:
        """Return what the client's part tells the server's of a result besides the model, by name."""
        return {}

    def take_state_up(self, task: Task, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state_up` returned at the client, at the server before the client's result."""

    # ---- for subclasses ----

    def add_client_vectors(
        self, name: str, initial: Tensor, weights: np.ndarray | None = None, *, has_mean: bool = True
    ) -> None:
        """Declare an attribute that holds a vector of each client; see :class:`ClientVectors`.

        Args:
            name: The attribute.
            initial: Every client's first vector, floating-point of shape ``(length,)``.
            weights: Weights of the clients in the mean, shape ``(K,)``; equal ones if ``None``.
            has_mean: Whether there is a mean of all clients' vectors.
        """
        self.add_state(name, ClientVectors(self.federation, initial, weights, has_mean=has_mean))

    def at(self, name: str, round_index: int | None = None) -> float:
        """Return a setting's value in a round, the present one if ``None``.

        Raises:
            ValueError: If it is a function whose value is out of the setting's range.
        """
        value = getattr(self, name)
        if not callable(value):
            return float(value)
        if round_index is None:
            round_index = self.round
        return checked_in_round(self, name, round_index, value(round_index))

    def generator(self, task: Task | None = None, *place: int, stream: Stream = Stream.PARTS) -> torch.Generator:
        """Return a generator on the CPU whose numbers depend on the seed, the round and the client alone.

        Args:
            task: The client's task; ``None`` for what the whole round shares.
            place: Numbers that keep draws of one client apart, such as those of two parts.
            stream: What the numbers are for; the library's parts have streams of their own.
        """
        # The round draws as a client would that comes after all others.
        seeds = (self.round, self.federation.num_clients) if task is None else task.seeds
        return torch_generator(self.federation.seed, stream, *place, *seeds)

    # ---- for the library ----

    @property
    def client_vectors(self) -> dict[str, ClientVectors]:
        """The vectors that clients keep for this part, by attribute."""
        return {name: held for name, held in self.declared().items() if isinstance(held, ClientVectors)}

    def begin_fit(self, federation: Federation) -> None:
        """Take the federation and declare the state of a new fit anew."""
        vars(self).pop("_states", None)
        self.federation = federation
        self.round = 0
        self.setup(federation)
        self.keep()

    def begin_round(self, round_index: int) -> None:
        """Begin a round."""
        self.round = round_index
        self.on_round_start(round_index)

    def commit_vectors(self) -> None:
        """Let clients' new vectors count in their means; call it on all processes together."""
        for held in self.client_vectors.values():
            held.commit()


def personal_model(parts: Iterable[Part], client: int, model: Tensor) -> Tensor:
    """Return the model by which a client is evaluated, shape ``(size,)``: the given one, where parts have no other.

    Raises:
        RuntimeError: With several processes, on others than ``client % num_ranks``, on which its vectors live.
    """
    known = list(parts)
    for part in known:
        model = part.model_of(client, model)
    for part in known:
        own = part.personal(client, model)
        if own is not None:
            model = own
    return model


def is_among(part: Part, parts: Iterable[Part]) -> bool:
    """Return whether a part is one of these, the very object: a user's class may call others equal."""
    return any(part is other for other in parts)


def walk(*held: Any) -> list[Part]:
    """Return parts, those in their attributes and those in lists there, each once."""
    found: dict[int, Part] = {}
    waiting = list(reversed(held))
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple)):
            waiting += [item for item in reversed(part) if isinstance(item, Part)]
        elif isinstance(part, Part) and id(part) not in found:
            found[id(part)] = part
            waiting += [value for value in reversed(vars(part).values()) if isinstance(value, (Part, list, tuple))]
    return list(found.values())
