"""Federated averaging.

From the choice of the parts to the end of the first epoch, these are called in this order, where clients train one
after the other. A name stands where it is called first::

    AggregationCallback.__post_init__     algorithms/base.py              ``FedAvg(10)`` is made
    AveragingCallback.configure_algorithm algorithms/fedavg.py            its parts are chosen
    AggregationCallback.setup             algorithms/base.py              ``trainer.fit`` begins
    install_loop                          _lightning/loops/round_loop.py  the trainer gets this package's loop
    FederatedLoop.begin_fit               loop.py                         the server takes the module's weights
    RoundLoop.on_advance_start            _lightning/loops/round_loop.py  an epoch begins
    FederatedLoop.draw_clients            loop.py                         a round begins in it
    Run.begin_round                       parts/run.py                    so it does for all parts
    Round.draw                            parts/round.py                  each client of the round gets a task
    UniformSampler.draw                   parts/samplers/uniform.py       m of K clients are drawn
    Participation.outcome                 parts/samplers/participation.py some of them drop out
    RoundLoop.advance                     _lightning/loops/round_loop.py  the epoch trains
    FederatedLoop.train_round             loop.py                         the round is played
    Round.play                            parts/round.py                  by its schedule:
    Synchronous.play                      parts/schedules/synchronous.py  yields the tasks, loops over the results
    Round._results                        parts/round.py                  for each result that the loop asks for
    SequentialExecutor.run                executors/sequential.py         the next task is trained
    Algorithm.received                    parts/algorithm.py              the client receives a model:
    Round.received                        parts/round.py                  what the server sends
    Chain.download                        parts/exchanges/base.py         passes through the exchanges
    LocalTraining.train                   clients/training.py             and is written into the module
    ClientLoop.train_batch                _lightning/loops/client_loop.py each batch of the client is trained
    PlainStepper.take                     _lightning/loops/steps.py       training_step, backward, optimizer.step
    LocalTraining.finish                  clients/training.py             the module is read as the client's result
    Round._end_client                     parts/round.py                  the parts see it
    Chain.upload                          parts/exchanges/base.py         it passes through the exchanges
    Server.take                           parts/server.py                 and reaches the server, which adds it
    WeightedMean.weighted                 parts/aggregations/means.py     with the weight n_k to its mean
    Server.move                           parts/server.py                 after the last result
    RunningMean.pop                       parts/aggregations/means.py     the mean is taken
    Mixing.step                           parts/servers/mixing.py         and the server moves to it
    Round._end                            parts/round.py                  the round ends for all parts
    Books.count                           parts/traffic.py                its messages are counted
    FederatedLoop.load_published          loop.py                         the module gets the server's model
    FederatedLoop.end_round               loop.py                         the round is done
    RoundLoop.on_advance_end              _lightning/loops/round_loop.py  it is validated, and the epoch ends

The default executor, ``"auto"``, trains the first client of a fit in this way, and then chooses for the others. More of
a round is in ``docs/code.md``.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import CurrentMean, StaleMean, WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.schedules.synchronous import EvaluatedModel, synchronous
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import Scheduled

_AGGREGATIONS = {"selected": WeightedMean, "stale": StaleMean, "current": CurrentMean}


@dataclass(eq=False, repr=False)
class AveragingCallback(AggregationCallback):
    """The base of FedAvg and of algorithms with another objective or server; the arguments are :class:`FedAvg`'s."""

    _: KW_ONLY
    weighting: Weighting = "samples"
    partial: Literal["selected", "stale", "current"] = "selected"
    server_lr: Scheduled = 1.0
    evaluate: EvaluatedModel = "server"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "samples", "partial": "selected"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(
            schedule=synchronous(self.evaluate, self.weighting),
            objective=self.configure_objective(),
            aggregation=_AGGREGATIONS[self.partial](self.weighting),
            server_optimizer=self.configure_server(),
        )

    def configure_objective(self) -> LocalObjective:
        """Return the clients' objective."""
        return LocalObjective()

    def configure_server(self) -> ServerOptimizer:
        """Return the server optimizer."""
        return Mixing(self.server_lr)


@dataclass(eq=False, repr=False)
class FedAvg(AveragingCallback):
    """FedAvg (McMahan et al. 2017; eq. (1)-(3c)): the server moves to the mean of the clients' models.

    With ``local_epochs=1`` and a data module of ``batch_size=None`` this is FedSGD.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        weighting: ``"samples"`` weighs a client by its size n_k, ``"uniform"`` gives all clients the same weight.
        partial: How clients that do not train in a round are counted. ``"selected"``: not at all, the mean is over the
            clients that train (3a). ``"stale"``: with their last local model (3b). ``"current"``: with the server's
            model (3c).
        server_lr: Server learning rate: ``w + server_lr (mean - w)``; 1 replaces the model. A function of the round
            makes a schedule.
        aggregation: Another way to merge results. It excludes ``weighting`` and ``partial``.
        evaluate: The model that is validated, checkpointed and tested: ``"server"``, which clients receive next;
            ``"active"``, the mean of the round's local models; ``"all"``, the mean of every client's last local model.
            Clients are weighted by ``weighting``.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedAvg(clients_per_round=2, local_epochs=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    # The one argument that may be given by position: the bases' arguments are keywords.
    clients_per_round: int | float | None = None
