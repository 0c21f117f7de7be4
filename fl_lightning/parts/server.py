"""The server: its model, the only way in which results reach it, and how it moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.checks import (
    Fraction,
    NotNegative,
    Positive,
    Scheduled,
    ScheduledFraction,
    check,
    check_fields,
    checked_vector,
    is_finite,
    short_repr,
)
from fl_lightning.parts.aggregation import Aggregation, MeanAggregation, RunningMean
from fl_lightning.parts.exchange import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, Payload, accumulator, same_values
from fl_lightning.parts.objectives import DynamicRegularizer
from fl_lightning.parts.part import Part, walk

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

Rule = Literal["adagrad", "adam", "yogi"]


class ServerOptimizer(Part, ABC):
    """Turns the server's parameters and the clients' aggregate into the server's next parameters."""

    @abstractmethod
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the next parameters.

        Args:
            model: The server's parameters w_t, shape ``(num_parameters,)``; not to be written to.
            aggregate: The merged client parameters, float64 of the same shape.

        Returns:
            w_{t+1}; it is converted to the dtype of ``model``.
        """


@dataclass(eq=False)
class Mixing(ServerOptimizer):
    """``w_{t+1} = w_t + lr (aggregate - w_t)``: eq. (22), and with ``lr=1`` FedAvg's replacement (3a).

    Equations are numbered as in ``docs/references.md``.

    Args:
        lr: Server learning rate, greater than 0; a function of the round makes a schedule.

    Raises:
        ValueError: If ``lr`` is not a finite number greater than 0.
    """

    lr: Scheduled = 1.0

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the mixed parameters."""
        lr, current = self.at("lr"), model.to(aggregate.dtype)
        return aggregate if lr == 1.0 else current + lr * (aggregate - current)


@dataclass(eq=False)
class Momentum(ServerOptimizer):
    """``v <- momentum v + Delta; w <- w + lr v`` with ``Delta = aggregate - w`` (FedAvgM, eq. (21)).

    It is ``TorchServer(torch.optim.SGD, lr, momentum=momentum)``, and its momentum may be a schedule.

    Equations are numbered as in ``docs/references.md``.

    Args:
        momentum: beta in [0, 1); with 0 and ``lr=1`` the aggregate replaces the model.
        lr: Server learning rate, greater than 0. Both may be functions of the round.

    Raises:
        ValueError: If an argument is out of its range.
    """

    momentum: ScheduledFraction = 0.9
    lr: Scheduled = 1.0

    def setup(self, federation: Federation) -> None:
        """Start without a velocity."""
        self.velocity: Tensor | None
        self.add_state("velocity", None)

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the parameters after one step along the velocity."""
        current = model.to(aggregate.dtype)
        delta = aggregate - current
        self.velocity = delta if self.velocity is None else self.at("momentum") * self.velocity + delta
        return current + self.at("lr") * self.velocity


@dataclass(eq=False)
class Adaptive(ServerOptimizer):
    """Adagrad, Adam or Yogi on the server (FedOpt, Reddi et al. Algorithm 2; eq. (17)-(20)).

    With ``Delta = aggregate - w``: ``m <- beta1 m + (1 - beta1) Delta``; v by the rule; ``w <- w + lr m / (sqrt(v) +
    tau)``. PyTorch's Adam corrects the bias of m and v, and starts v at 0; its Adagrad has no m; it has no Yogi.

    Equations are numbered as in ``docs/references.md``.

    Args:
        rule: ``"adagrad"``: v + Delta^2; ``"adam"``: beta2 v + (1 - beta2) Delta^2; ``"yogi"``:
            v - (1 - beta2) Delta^2 sign(v - Delta^2).
        lr: Server learning rate, greater than 0; a function of the round makes a schedule. ``None`` takes 0.01, as
            :class:`~fl_lightning.FedAdam` and :class:`~fl_lightning.FedYogi` do, and for Adagrad 0.1, as
            :class:`~fl_lightning.FedAdagrad` does.
        beta1: Decay of the first moment, in [0, 1); ``None`` takes 0.9, and 0 for Adagrad.
        beta2: Decay of the second moment, in [0, 1); Adagrad has none.
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether m is divided by ``1 - beta1^t`` and (except for Adagrad) v by ``1 - beta2^t`` in step
            t, as other implementations do; the paper does not.

    Raises:
        FloatingPointError: In a step, if an update is so large that v becomes infinite.
        ValueError: If an argument is out of its range.
    """

    rule: Rule
    lr: Scheduled | None = None
    beta1: Fraction | None = None
    beta2: Fraction = 0.99
    tau: Positive = 1e-3
    v0: NotNegative = 0.0
    bias_correction: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        self.lr = (0.1 if self.rule == "adagrad" else 0.01) if self.lr is None else self.lr
        self.beta1 = (0.0 if self.rule == "adagrad" else 0.9) if self.beta1 is None else self.beta1

    def setup(self, federation: Federation) -> None:
        """Return to m = 0 and v = v0."""
        self.m: Tensor | None
        self.add_state("m", None)
        self.v: Tensor | None
        self.add_state("v", None)
        self.steps: int
        self.add_state("steps", 0)

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the parameters after one adaptive step."""
        beta1 = self.beta1 or 0.0
        current = model.to(aggregate.dtype)
        delta = aggregate - current
        m = beta1 * (torch.zeros_like(delta) if self.m is None else self.m) + (1 - beta1) * delta
        v, square = torch.full_like(delta, self.v0) if self.v is None else self.v, delta.square()
        if self.rule == "adagrad":
            v = v + square
        elif self.rule == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * torch.sign(v - square)
        if not is_finite(v):
            raise FloatingPointError(
                f"The second moment of {self!r} is infinite: the clients' update is too large, up to "
                f"{float(delta.abs().max()):.3g}. Lower their learning rate, or give `exchange=Clip(...)`."
            )
        self.m, self.v, self.steps = m, v, self.steps + 1
        if self.bias_correction:
            m = m / (1 - beta1**self.steps)
            v = v if self.rule == "adagrad" else v / (1 - self.beta2**self.steps)
        return current + self.at("lr") * m / (v.sqrt() + self.tau)


class TorchServer(ServerOptimizer):
    """Any optimizer of PyTorch on the server, whose gradient is ``w - aggregate``; SGD with ``lr=1`` is FedAvg.

    The optimizer sees one parameter for each parameter tensor of the module. It keeps its state from round to round.

    Args:
        optimizer: A class such as ``torch.optim.AdamW``; its ``step`` must need no closure.
        lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        options: The optimizer's other arguments, such as ``weight_decay=0.01``.

    Raises:
        TypeError: If ``optimizer`` cannot be called, or has no such option.
        ValueError: If ``lr`` or an option is out of its range.
    """

    optimizer: Callable[..., Optimizer]
    lr: Scheduled

    def __init__(self, optimizer: type[Optimizer], lr: Scheduled = 1.0, **options: Any) -> None:
        self.optimizer, self.lr, self.options = (
            check("`optimizer`", optimizer, Callable),
            check("`lr`", lr, Scheduled),
            options,
        )
        self._make([torch.zeros(1)])  # so that a wrong option is an error here

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"TorchServer({short_repr(self.optimizer)}, lr={short_repr(self.lr)}{options})"

    def setup(self, federation: Federation) -> None:
        """Start without moments."""
        self.state: dict[str, Any] | None
        self.add_state("state", None)

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the parameters after one step of the optimizer."""
        current = model.to(aggregate.dtype, copy=True)
        parameters, targets = (list(self.federation.tensors(vector).values()) for vector in (current, aggregate))
        for parameter, target in zip(parameters, targets, strict=True):
            parameter.grad = parameter - target
        optimizer = self._make(parameters)
        if self.state is not None:
            optimizer.load_state_dict(deepcopy(self.state))  # which the step writes to
        for group in optimizer.param_groups:
            group["lr"] = self.at("lr")
        optimizer.step()
        self.state = optimizer.state_dict()
        return current

    def _make(self, parameters: list[Tensor]) -> Optimizer:
        return self.optimizer(parameters, lr=self.at("lr"), **self.options)


@dataclass(eq=False)
class DynamicServer(ServerOptimizer):
    """``theta <- mean of the active clients + mean of all lambda_k`` (FedDyn, eq. (7), (8), (11)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        objective: The clients' objective, which keeps lambda_k; the mean of all is ``-h / alpha``.

    Raises:
        TypeError: If ``objective`` is no :class:`DynamicRegularizer`.
        ValueError: When an algorithm is made, if its objective is not ``objective``.
    """

    objective: DynamicRegularizer

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether no client renews the lambda_k that this part reads."""
        if not any(part is self.objective for part in walk(algorithm.objective)):
            yield f"`objective` of {self!r} must be the algorithm's objective, got {algorithm.objective!r}."

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        """Return the corrected mean."""
        self.objective.duals.commit()
        return aggregate + self.objective.duals.mean


class Server:
    """Holds the server's model, takes results and moves.

    Args:
        federation: The run.
        exchange: What travels.
        aggregation: Merges results.
        optimizer: Moves the model to what they merge into.
        left_out_payload: The message of a client whose result is left out.

    Attributes:
        model: The server's model w_t, shape ``(size,)``: parameters first, then buffers.
        moves: How often the server has moved.
        changing: Names of the buffers that training changes. All others are constant: masks, tables of positions. They
            stay as they are, cost no traffic, and may be NaN.
    """

    def __init__(
        self,
        federation: Federation,
        exchange: Exchange,
        aggregation: Aggregation,
        optimizer: ServerOptimizer,
        left_out_payload: Payload,
    ) -> None:
        self.federation = federation
        self.left_out_payload = left_out_payload
        self._exchange = exchange
        self._aggregation = aggregation
        self._optimizer = optimizer
        self.model = federation.model
        self.moves = 0
        layout = federation.layout
        #: Number of values of each buffer.
        self._buffers = dict(zip(layout.buffers, layout.lengths[layout.num_trained :], strict=True))
        self.changing: frozenset[str] = frozenset()
        self._length: int | None = None  # of the vectors of which an aggregation takes the mean
        # whether all results must be there before any of them is merged
        self._waits = exchange.colludes or not isinstance(aggregation, MeanAggregation)
        self.forget()

    @property
    def state(self) -> tuple[Tensor, int, frozenset[str]]:
        """What changes from round to round."""
        return self.model, self.moves, self.changing

    @state.setter
    def state(self, state: tuple[Tensor, int, frozenset[str]]) -> None:
        self.model, self.moves, self.changing = state
        self.forget()

    def forget(self) -> None:
        """Forget the results that were taken since the last move, and which buffers changed."""
        self._results: list[ClientResult] = []
        self._mean, self._buffer_mean = RunningMean(), RunningMean()
        self._everywhere = False
        self._seen: set[str] = set()

    # ---- buffers ----

    def watch(self, result: ClientResult) -> None:
        """Note which buffers a client changed."""
        if len(self.changing) == len(self._buffers):
            return
        _, start = self.federation.layout.split(result.start)
        before = start.split(list(self._buffers.values()))
        after = result.buffers.split(list(self._buffers.values()))
        pairs = zip(self._buffers, before, after, strict=True)
        self._seen |= {name for name, old, new in pairs if not same_values(old, new)} - self.changing

    def join_changing(self) -> None:
        """Add the buffers that clients changed to :attr:`changing`; call it on all processes."""
        if len(self.changing) < len(self._buffers):
            self.changing = self.changing.union(*self.federation.gather(self._seen))
        self._seen = set()

    def keep_constant(self, model: Tensor) -> Tensor:
        """Return a model, shape ``(size,)``, with the server's values of all constant buffers."""
        if len(self.changing) == len(self._buffers):
            return model
        layout = self.federation.layout
        parameters, buffers = layout.split(model)
        _, constant = layout.split(self.model)
        _, varies = layout.split(layout.mask(self.changing, model.device))
        return layout.joined(parameters, torch.where(varies, buffers, constant.to(model.dtype)))

    # ---- results ----

    def take(self, result: ClientResult, *, everywhere: bool = False) -> None:
        """Take one result: the only way into an aggregation.

        Args:
            result: As it left the exchange.
            everywhere: Whether every process takes this result, just before the server moves; otherwise only the one
                that has it.
        """
        self._everywhere = everywhere
        rank, ranks = self.federation.rank, self.federation.num_ranks
        if self._waits:
            self._results.append(result)
        elif not everywhere or result.task.slot % ranks == rank:
            self._add(result)

    def _add(self, result: ClientResult) -> None:
        """Add a result to the mean."""
        aggregation = self._aggregation
        assert isinstance(aggregation, MeanAggregation)
        vector, weight = aggregation.weighted(result)
        self._length = len(vector)
        self._mean.add(vector, weight)
        if not aggregation.merges_buffers and len(result.buffers):
            self._buffer_mean.add(result.buffers, aggregation.weight_of(result))

    def replace(self, model: Tensor) -> None:
        """Move to a model that a schedule has aggregated itself, shape ``(size,)``."""
        self.model, self.moves = self.keep_constant(model.to(self.model.dtype)), self.moves + 1

    def move(self) -> bool:
        """Move to what the results merge into; return false, and stay, if there were none. Call it on all processes."""
        layout = self.federation.layout
        self.join_changing()
        aggregate = self._merge()
        self.forget()
        if aggregate is None:
            return False
        aggregate = self._exchange.on_aggregate(aggregate)
        current, _ = layout.split(self.model)
        parameters, buffers = layout.split(aggregate)
        stepped = self._optimizer.step(current, parameters)
        stepped = checked_vector(self._optimizer, "step", stepped, current, finite=layout.num_parameters)
        self.model = self.keep_constant(layout.joined(stepped, buffers))
        self.moves += 1
        return True

    def _merge(self) -> Tensor | None:
        """Return the aggregate, float64 of shape ``(size,)``; ``None`` if there is none."""
        aggregation = self._aggregation
        federation = self.federation
        layout = federation.layout
        parameters, buffers = layout.split(self.model)
        model = self.model if aggregation.merges_buffers else parameters
        like = model.to(accumulator(model))
        results = self._all_results() if self._waits else ()

        # A mean streams: each process adds its own results, and the sums are joined.
        if isinstance(aggregation, MeanAggregation):
            for result in results:
                if result.client % federation.num_ranks == federation.rank:  # where its vectors are
                    self._add(result)
            merged = self._finish(aggregation, model)
            if merged is None:
                return None
            merged = checked_vector(aggregation, "finish", merged, like, finite=layout.num_parameters)
            mean, _ = self._buffer_mean.pop(federation, buffers)
        # Any other aggregation gets all results, on every process.
        else:
            if not aggregation.merges_buffers:
                for result in results:
                    self._buffer_mean.add(result.buffers, aggregation.weight_of(result))
            merged = aggregation.merge(model, results) if results else None
            if merged is None:
                return None
            merged = checked_vector(aggregation, "merge", merged, like, finite=layout.num_parameters)
            mean, _ = self._buffer_mean.pop(None, buffers)
        if len(merged) == layout.size:
            return merged
        return layout.joined(merged, buffers if mean is None else mean)

    def _finish(self, aggregation: MeanAggregation, model: Tensor) -> Tensor | None:
        """Return what an aggregation makes of the mean over all processes."""
        federation = self.federation
        if federation.num_ranks > 1:
            self._length = max((length for length in federation.gather(self._length) if length), default=None)
        mean, weight = self._mean.pop(federation, None if self._length is None else model.new_zeros(self._length))
        if mean is None and not aggregation.acts_alone:
            return None
        return aggregation.finish(model, mean, weight)  # type: ignore[arg-type]  # ``None`` where it acts alone

    def _all_results(self) -> Sequence[ClientResult]:
        """Return the results that wait, of all processes, in the order of slots, or of arrivals."""
        federation, results, exchange = self.federation, self._results, self._exchange
        if not self._everywhere:
            results = sorted(federation.gather_results(results), key=lambda result: result.task.slot)
        return exchange.collude(results) if exchange.colludes else results
