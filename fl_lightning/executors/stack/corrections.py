"""The terms that local objectives add to the gradients of several clients.

To the gradient of the worked example's weights ``w``, which start at ``w'``, each client adds its own
``pull (w - w') + linear``, with a pull of shape ``(K,)`` and a linear term of the weights' shape ``(K, out, in)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.executors.stack.optimizer import along
from fl_lightning.parts.objectives.corrections import ChangedLoss, Correction, Term, Walk


class StackedCorrections:
    """The clients' terms, one a row; see :class:`~fl_lightning.parts.objectives.corrections.Term`.

    Args:
        corrections: Each client's, ``None`` for none.
        starts: The models from which their training starts, shape ``(size,)`` each.
        vector: The federated state of the module.
        ascends: Whether the optimizer maximises, by each parameter tensor.

    Raises:
        CannotVectorize: If a correction is no term, if a term has an ``add`` that may count clients' steps, or if
            clients freeze different parameters.
    """

    def __init__(
        self,
        corrections: Sequence[Correction | None],
        starts: Sequence[Tensor],
        vector: StateVector,
        ascends: Sequence[bool],
    ) -> None:
        self._ascends = ascends
        self._active = any(correction is not None for correction in corrections)
        terms = _terms_of(corrections)
        self._frozen = terms[0].frozen
        if any(term.frozen != self._frozen for term in terms):
            raise CannotVectorize("the local objective freezes other parameters for each client")
        #: The terms, if some of them add gradients of another form; else none.
        self._own: list[Term] = []
        if not all(term.is_quadratic for term in terms):
            self._own = terms
        self._pulls = [term.pull for term in terms]
        #: Each client's additional weight decay.
        self.weight_decays = [term.weight_decay for term in terms]
        self._starts: list[Tensor] = []
        self._linear: list[Tensor] = []
        if any(self._pulls) or self._own:
            self._starts = _stacked_parameters(vector, starts)
        if any(term.linear is not None for term in terms):
            zero = torch.zeros(vector.layout.num_parameters, dtype=vector.dtype, device=vector.device)
            linear = [zero if term.linear is None else term.linear for term in terms]
            self._linear = _stacked_parameters(vector, linear)
        self._shifts: list[Tensor] | None = None

    @property
    def quadratic(self) -> bool:
        """Whether all terms are those of :class:`Term` itself, for all parameters."""
        return not self._own and not self._frozen

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
        if self._linear:
            shift.sub_(self._linear[place])
        return shift

    def __bool__(self) -> bool:
        """Whether any client's objective adds anything."""
        return self._active

    def correct(self, parameters: Sequence[Tensor], gradients: list[Tensor | None]) -> None:
        """Add the corrections to the gradients, in place; frozen parameters have none.

        Args:
            parameters: The parameters of the clients at work, shape ``(active, *shape)`` each.
            gradients: Their gradients.
        """
        for place in self._frozen:
            gradients[place] = None
        with torch.no_grad():
            self._turn(gradients)
            if self._own:
                self._correct_one_by_one(parameters, gradients)
            else:
                self._add(parameters, gradients)
            self._turn(gradients)

    def _turn(self, gradients: Sequence[Tensor | None]) -> None:
        """Turn gradients that an optimizer ascends into those of what is minimised, or back."""
        for gradient, ascends in zip(gradients, self._ascends, strict=True):
            if ascends and gradient is not None:
                gradient.neg_()

    def _add(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Add the terms of :class:`Term` itself."""
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
        """Let terms of another form add themselves."""
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        for row in range(len(parameters[0])):
            own = [parameters[place].detach()[row] for place in places]
            for view, place in zip(own, places, strict=True):
                view.grad = gradients[place][row]  # type: ignore[index]
            starts = [self._starts[place][row] for place in places]
            linear = [self._linear[place][row] for place in places] if self._linear else []
            self._own[row].add(own, starts, linear)
            for view, place in zip(own, places, strict=True):
                gradients[place][row].copy_(view.grad)  # type: ignore[index, arg-type]

    def decay(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], decays: Tensor) -> None:
        """Add ``decay * parameter`` to the gradients, in place.

        Args:
            parameters: The parameters of the clients at work.
            gradients: Their gradients.
            decays: Each client's weight decay, shape ``(K,)``.
        """
        for parameter, gradient, ascends in zip(parameters, gradients, self._ascends, strict=True):
            if gradient is not None:
                term = parameter.detach() * along(decays[: len(parameter)], parameter)
                gradient.add_(term, alpha=-1 if ascends else 1)


def _terms_of(corrections: Sequence[Correction | None]) -> list[Term]:
    """Return the terms that clients add.

    Raises:
        CannotVectorize: If a correction is no term, or one with an ``add`` that may count steps.
    """
    terms: list[Term] = []
    for correction in corrections:
        match correction:
            case None:
                terms.append(Term())
            case Term() as term:
                if not term.is_quadratic and not term.stacks:
                    name = type(term).__name__
                    raise CannotVectorize(
                        f"`{name}.add` may keep what it needs from step to step; if it does not, set `stacks = True`"
                    )
                terms.append(term)
            case ChangedLoss():
                raise CannotVectorize("the local objective changes the loss of each client")
            case Walk() as walk:
                raise CannotVectorize(walk.why_alone)
    return terms


def _stacked_parameters(vector: StateVector, flat: Sequence[Tensor]) -> list[Tensor]:
    """Return vectors of the parameters' values, one for each client, as a stack for each parameter."""
    views = [vector.parameter_views(own) for own in flat]
    return [torch.stack(rows) for rows in zip(*views, strict=True)]
