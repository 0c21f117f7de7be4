"""The terms that local objectives add to the gradients of several clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.plain_copies import plain_copy, same_content
from fl_lightning.checks import is_user_defined
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stacked.changes.comparison import ByIdentity, changed_name
from fl_lightning.executors.stacked.changes.module_state import Snapshotter
from fl_lightning.executors.stacked.optimizer import along
from fl_lightning.executors.stacked.surroundings import add_named, surroundings
from fl_lightning.parts.objectives import Correction
from fl_lightning.parts.part import Part

_NODES = 20_000  # objects that are looked at


class StackedCorrections:
    """The clients' corrections, one a row; see :class:`~fl_lightning.parts.objectives.Correction`.

    Args:
        corrections: Each client's, ``None`` for none.
        starts: The models that they received, shape ``(size,)`` each.
        vector: The federated state of the module.

    Raises:
        CannotVectorize: If clients share a correction with an ``add`` of its own, which may count their steps.
    """

    def __init__(self, corrections: Sequence[Correction | None], starts: Sequence[Tensor], vector: StateVector) -> None:
        self._active = any(correction is not None for correction in corrections)
        nothing = Correction()
        given = [correction or nothing for correction in corrections]
        if any(correction.walks or correction.frozen for correction in given):
            raise CannotVectorize("the local objective freezes parameters, or takes gradients at several points")
        self._own = given if any(type(correction).add is not Correction.add for correction in given) else []
        _refuse_shared(self._own)
        self._pulls = [correction.pull for correction in given]
        #: Each client's additional weight decay.
        self.weight_decays = [correction.weight_decay for correction in given]
        self._starts: list[Tensor] = []
        self._linear: list[Tensor] = []
        number = len(vector.parameters)
        if any(self._pulls) or self._own:
            self._starts = [torch.stack(views) for views in zip(*map(vector.views, starts), strict=True)][:number]
        if any(correction.linear is not None for correction in given):
            zero = torch.zeros(vector.num_parameters, dtype=vector.dtype, device=vector.device)
            views = [vector.parameter_views(zero if c.linear is None else c.linear) for c in given]
            self._linear = [torch.stack(rows) for rows in zip(*views, strict=True)]

        self._shifts: list[Tensor] | None = None

    @property
    def quadratic(self) -> bool:
        """Whether all terms are those of :class:`Correction` itself."""
        return not self._own

    def pulls(self, rows: Sequence[int]) -> float | Tensor:
        """Return the weights of the quadratic terms of some clients, as one number if they are equal."""
        if len(set(self._pulls)) == 1:
            return self._pulls[0]
        return torch.tensor([self._pulls[row] for row in rows], dtype=torch.float64)

    def shift(self, place: int, rows: Sequence[int]) -> Tensor | None:
        """Return ``pull w' - linear`` of a parameter, for neighbouring clients; None if it is 0 for all."""
        if not self._starts and not self._linear:
            return None
        if self._shifts is None:
            self._shifts = [self._make_shift(number) for number in range(len(self._starts or self._linear))]
        return self._shifts[place][rows[0] : rows[-1] + 1]

    def _make_shift(self, place: int) -> Tensor:
        if not self._starts:
            return -self._linear[place]
        start = self._starts[place]
        shift = start * along(torch.tensor(self._pulls, dtype=torch.float64), start)
        return shift.sub_(self._linear[place]) if self._linear else shift

    def __bool__(self) -> bool:
        """Whether any client's objective adds anything."""
        return self._active

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Put back what corrections of a user's own keep from step to step: clients may be trained again.

        Raises:
            CannotVectorize: If one of them keeps something.
        """
        before = [plain_copy(vars(correction)) for correction in self._own]
        try:
            yield
        finally:
            changed = [_put_back(*pair) for pair in zip(self._own, before, strict=True)]
        for correction, name in zip(self._own, changed, strict=True):
            if name is not None:
                raise CannotVectorize(_change(correction, f"`{name}`"))

    def correct(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Add the corrections to the gradients, in place.

        Args:
            parameters: The parameters of the clients at work, shape ``(active, *shape)`` each.
            gradients: Their gradients.
        """
        with torch.no_grad():
            if self._own:
                self._correct_one_by_one(parameters, gradients)
                return
            equal = len(set(self._pulls)) == 1
            pulls = torch.tensor(self._pulls[: len(parameters[0])], dtype=torch.float64)
            for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                if gradient is None:
                    continue
                if self._starts:
                    drift = parameter - self._starts[place][: len(parameter)]
                    if equal:
                        gradient.add_(drift, alpha=self._pulls[0])
                    else:
                        gradient.add_(drift.mul_(along(pulls, drift)))
                if self._linear:
                    gradient.add_(self._linear[place][: len(parameter)])

    def _correct_one_by_one(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Let corrections of another form add themselves."""
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        for row in range(len(parameters[0])):
            rows = [parameters[place].detach()[row] for place in places]
            for view, place in zip(rows, places, strict=True):
                view.grad = gradients[place][row]  # type: ignore[index]
            starts = [self._starts[place][row] for place in places]
            self._own[row].add(rows, starts, [self._linear[place][row] for place in places] if self._linear else [])
            for view, place in zip(rows, places, strict=True):
                gradients[place][row].copy_(view.grad)  # type: ignore[index, arg-type]

    def decay(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], decays: Tensor) -> None:
        """Add ``decay * parameter`` to the gradients, in place.

        Args:
            parameters: The parameters of the clients at work.
            gradients: Their gradients.
            decays: Each client's weight decay, shape ``(K,)``.
        """
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                gradient.add_(parameter.detach() * along(decays[: len(parameter)], parameter))


class CorrectionState:
    """Attributes of a correction of a user's own, those of its class, and globals that its methods see.

    Parts, and objects of the library, are not looked into.

    Args:
        correction: The correction; ``None`` for none.
    """

    def __init__(self, correction: Correction | None) -> None:
        self._correction = correction
        self._before = self._look()

    def _look(self) -> dict[str, Any]:
        if self._correction is None or type(self._correction).add is Correction.add:
            return {}
        snapshotter = _CorrectionSnapshotter(set(), True, _NODES, samples=True)
        held = surroundings(type(self._correction))
        add_named(held, vars(self._correction), type(self._correction).__qualname__)
        return {name: snapshotter.snapshot(value) for name, value in held.items()}

    def changed(self) -> str | None:
        """Return in words what is another now, ``None`` if nothing is."""
        name = changed_name(self._before, self._look())
        return None if name is None else _change(self._correction, name)


class _CorrectionSnapshotter(Snapshotter):
    def _snapshot_of(self, value: Any) -> Any:
        if isinstance(value, Part) or not is_user_defined(type(value)):
            return ByIdentity.of(value)
        return super()._snapshot_of(value)


def _change(correction: Correction | None, name: str) -> str:
    return f"`{type(correction).__name__}.add` changes {name}, which it may need in later steps"


def _refuse_shared(corrections: Sequence[Correction]) -> None:
    """Raise ``CannotVectorize`` if clients share a correction: its ``add`` would see their steps in another order."""
    known: set[int] = set()
    for correction in corrections:
        if id(correction) in known:
            raise CannotVectorize(
                f"`correction` of the local objective returns one {type(correction).__name__} for several clients, and "
                "its `add` may keep what it needs from step to step; return a new one for each client"
            )
        if type(correction).add is not Correction.add:
            known.add(id(correction))


def _put_back(correction: Correction, before: dict[str, Any]) -> str | None:
    """Give a correction the attributes back that it has changed; return the name of one, ``None`` if there is none."""
    held = vars(correction)
    changed = [name for name in {**before, **held} if not same_content(before.get(name), held.get(name))]
    for name in changed:
        held.pop(name, None)
    held.update({name: before[name] for name in changed if name in before})
    return next(iter(changed), None)
