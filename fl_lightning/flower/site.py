"""A client's side: it trains at its site on its own data, and sends what the algorithm says."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
import torch
from typing_extensions import override

from fl_lightning._lightning.loops.round_loop import begin_with_round
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.clients.training import LocalTraining
from fl_lightning.data import FederatedDataModule
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.flower.door import refuse_callbacks
from fl_lightning.flower.kept import KeptVectors
from fl_lightning.flower.orders import (
    Answer,
    Order,
    check_version,
    describe_algorithm,
    describe_data,
    describe_trainer,
    options_from_text,
    parts_on_both_sides,
    state_arrays,
    state_of,
    versions,
)
from fl_lightning.flower.records import Context, received, reply_to
from fl_lightning.flower.stand_ins import GivenTerm, Outbox, RoundEnd, SamplesOfSite, SiteTrainer, ThisClient
from fl_lightning.flower.tensors import (
    layout_digest,
    pack_result,
    to_array,
    traveling_buffers,
    unpack_model,
    values_digest,
)
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.kept import by_key
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.part import Part, walk
from fl_lightning.parts.schedules.synchronous import Synchronous
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import PathLike, check

if TYPE_CHECKING:
    from flwr.app import Message


def query_client(
    message: Message, context: Context, data: FederatedDataModule, client: int | str | None = None
) -> Message:
    """Tell the server who the client is and how many samples it has.

    Args:
        message: The server's message.
        context: Flower's context of the client.
        data: The client's data: a data module with one client.
        client: The client's number, 0 to K-1, or its name; ``None`` takes ``client`` of the SuperNode's
            ``--node-config``.

    Returns:
        The reply.

    Raises:
        ValueError: If the client has no number or name, the data are not those of one client, or the server has another
            version of the library.
    """
    check_version(received(message))
    name = _name_of(context, client)
    data.prepare_data()
    data.setup("fit")
    _check_alone(data)
    return reply_to(message, versions(name=name, samples=int(data.client_sizes[0])))


def train_client(
    message: Message,
    context: Context,
    module: pl.LightningModule,
    data: FederatedDataModule,
    algorithm: AggregationCallback,
    *,
    client: int | str | None = None,
    state_dir: PathLike | None = None,
    secret_noise: bool = True,
    **trainer: Any,
) -> Message:
    """Train the client as the server's message asks, and return what it sends.

    The module, its first weights and the algorithm must be the server's: build them on both sides by the same function,
    after ``lightning.seed_everything``. They are used up: build them anew for each message.

    Args:
        message: The server's message.
        context: Flower's context of the client.
        module: The module, as the server built it.
        data: The client's data: a data module with one client.
        algorithm: The aggregation callback, as the server built it but for its executor.
        client: The client's number, 0 to K-1, or its name; ``None`` takes ``client`` of the SuperNode's
            ``--node-config``.
        state_dir: Folder for the vectors that the client keeps; without one they are in Flower's state, which ends with
            the SuperNode's process and with Flower's run.
        secret_noise: Whether the noise of :class:`~fl_lightning.parts.LocalDifferentialPrivacy` is drawn at the site
            from a number that nobody knows. With False it is the simulation's, from the run's seed: the server knows
            the seed, and can remove the noise.
        **trainer: Arguments of Lightning's Trainer, such as ``gradient_clip_val``, which the server has too.

    Returns:
        The reply.

    Raises:
        ValueError: If the message is of another run, version, model, algorithm or client, or the data are not those of
            one client.
    """
    check("`algorithm`", algorithm, AggregationCallback)
    check("`secret_noise`", secret_noise, bool)
    order = Order.from_parcel(received(message))
    name = _name_of(context, client)
    if name != order.name:
        raise ValueError(f"The message is for client {order.name}, and this is client {name}.")
    _check_same("algorithm", describe_algorithm(algorithm.algorithm), order.algorithm)
    data.prepare_data()
    data.setup("fit")
    _check_alone(data)
    if int(data.client_sizes[0]) != order.samples:
        raise ValueError(f"Client {name} said it has {order.samples} samples, and has {int(data.client_sizes[0])} now.")
    _check_same("data module's arguments", describe_data(data), order.data)
    data.federated_samples = SamplesOfSite(data.federated_samples, order)

    kept = KeptVectors(context, state_dir, order.run, order.client)
    fit = _FitAtSite(order, kept, secret_noise)
    fit.prepare(algorithm)
    fixed: dict[str, Any] = {
        "max_epochs": order.max_epochs,
        "min_epochs": None,
        "min_steps": None,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    callbacks = trainer.pop("callbacks", None) or []
    given = callbacks if isinstance(callbacks, list) else [callbacks]
    refuse_callbacks(given)
    round_end = RoundEnd()
    if taken := fixed.keys() & trainer.keys():
        raise ValueError(f"Arguments of the client's Trainer are fixed: {sorted(taken)}. Leave them out.")
    one_round = SiteTrainer(callbacks=[*given, algorithm, round_end], **fixed, **trainer)
    _check_same("Trainer's arguments", describe_trainer(one_round), order.trainer)
    begin_with_round(one_round, order.round)
    one_round.fit(module, datamodule=data)
    answer = fit.answer(algorithm.algorithm, round_end)
    # A client that is scored changes nothing that it keeps.
    if not order.is_look:
        kept.keep(order.counted, (order.round, order.message), fit.vectors(algorithm.algorithm))
    return reply_to(message, answer.to_parcel())


def _name_of(context: Context, client: int | str | None) -> str:
    """Return what a client is called.

    Raises:
        ValueError: If nothing says it.
    """
    given = context.node_config.get("client") if client is None else client
    if isinstance(given, bool) or not isinstance(given, (int, str)) or given == "":
        raise ValueError(
            f"The client must have a number from 0 or a name, got {given!r}. Start its SuperNode with "
            "--node-config 'client=0', or give `client=`."
        )
    return str(given)


def _check_alone(data: FederatedDataModule) -> None:
    """Raise ``ValueError`` unless a data module has one client."""
    if data.num_clients != 1:
        raise ValueError(
            f"A site has the data of one client, got a data module with {data.num_clients}. Give for example "
            "TensorDataModule([(x, y)])."
        )
    if data.changes is not None:
        raise ValueError(
            f"A site's data cannot have `changes`, got {data.changes!r}: it says how many samples it has only once. "
            "Leave it out."
        )


def _check_same(what: str, here: str, asked: str) -> None:
    """Raise ``ValueError`` if both sides differ in something."""
    if here != asked:
        raise ValueError(
            f"The {what} must be the same on both sides, got {here} here and {asked} at the server. Build it by the "
            "same function, or give the same arguments, on both sides."
        )


class _FitAtSite(SequentialExecutor):
    """The client's fit of one round, from the server's model and with what the client keeps.

    Args:
        order: What the server asks for.
        kept: What the client keeps.
        secret_noise: Whether local noise is drawn from a number that nobody knows.
    """

    def __init__(self, order: Order, kept: KeptVectors, secret_noise: bool) -> None:
        super().__init__()
        self._order = order
        self._kept = kept
        self._secret_noise = secret_noise
        self._outbox = Outbox()

    def prepare(self, callback: AggregationCallback) -> None:
        """Let an algorithm train this client alone, and put what it would hand to the server into the outbox."""
        order = self._order
        plan = callback.algorithm
        merged = WeightedMean()
        merged.needs_summed_lr = plan.needs_summed_lr
        plan.aggregation = merged
        plan.chain.members.append(self._outbox)
        plan.server_optimizer = Mixing()
        if plan.schedule.runs_where == "server":
            plan.schedule = Synchronous()
        if plan.objective.runs_where == "server":
            plan.objective = GivenTerm(order)
        callback.executor = self
        self._sampler = ThisClient(order, plan.sampler)
        callback.sampler = self._sampler
        callback.settings.seed = order.seed
        callback.local_epochs = order.local_epochs
        callback.local_steps = order.local_steps or None

    @override
    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[ClientResult]:
        """Do this client's trainings that share the order's message."""
        order = self._order
        mine = [task for task in tasks if task.client == order.client and task.message == order.message]
        return super().run(mine, training, algorithm)

    @override
    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        """Take the server's model and settings, and what the client keeps.

        Raises:
            ValueError: If the module is not the server's, or the client has lost what it keeps.
        """
        order = self._order
        run = algorithm.run
        first = run.federation.model
        _check_same("module's tensors", layout_digest(run), order.layout)
        if values_digest(first) != order.first:
            raise ValueError(
                "The module must begin with the server's first weights, got others. Build it on both sides after "
                "`lightning.seed_everything` with the same seed, or load the same weights on both sides."
            )
        changing = traveling_buffers(run, order.changing)
        run.server.changing = frozenset(order.changing)
        run.server.model = unpack_model(run, first, order.arrays, changing)
        # The server steps the schedules, by its own metrics, and sends the learning rates.
        training.trainer.strategy.lr_scheduler_configs = []
        if order.options:
            training.client_loop.optimizers.take_options(options_from_text(order.options))
        for name, part in parts_on_both_sides(algorithm).items():
            part.take_state_down(state_of(name, order.arrays, first.device))
        self._take_kept(algorithm)
        # What clients do after the last round is asked for in a message of its own, whatever the round.
        algorithm.schedule.federation = replace(algorithm.schedule.federation, max_rounds=order.round + 1)
        if self._secret_noise:
            for part in walk(algorithm.chain):
                if part.draws_secretly:
                    part.federation = replace(part.federation, seed=secrets.randbits(128))

    def _take_kept(self, algorithm: Algorithm) -> None:
        order = self._order
        keepers = _keepers(algorithm)
        vectors = self._kept.after(order.counted)
        if vectors is None and any(part.client_vectors for part in keepers.values()):
            raise ValueError(
                f"Client {order.name} is asked to go on from round {order.counted[0] + 1}, and does not have what it "
                "kept then. Give `train_client(state_dir=...)` a folder that outlasts the SuperNode, or start again "
                "without the checkpoint."
            )
        for key, part in keepers.items():
            for name, held in part.client_vectors.items():
                vector = (vectors or {}).get(f"{key}.{name}")
                if vector is not None:
                    held[order.client] = torch.from_numpy(vector).to(algorithm.run.federation.model.device)

    def answer(self, algorithm: Algorithm, end: RoundEnd) -> Answer:
        """Return what the client sends of its result, and of what it logged and counted."""
        order = self._order
        run = algorithm.run
        answer = Answer(
            run=order.run,
            client=order.client,
            round=order.round,
            message=order.message,
            scores=self._sampler.scores,
            batches=end.batches,
            all_steps=end.steps,
            log_names=tuple(each.name for each in end.logged),
            log_means=tuple(each.mean for each in end.logged),
            log_weights=tuple(each.weight for each in end.logged),
            log_on_bar=tuple(each.on_bar for each in end.logged),
        )
        result = self._outbox.result
        if result is None:
            return answer
        buffers = traveling_buffers(run, run.server.changing)
        arrays = pack_result(run, result, buffers)
        for name, part in parts_on_both_sides(algorithm).items():
            arrays |= state_arrays(name, part.state_up(result))
        return replace(
            answer,
            has_model=True,
            steps=result.num_steps,
            numbers=result.numbers,
            values=result.payload.values,
            bits_per_value=float(result.payload.bits_per_value),
            extra_bits=result.payload.extra_bits,
            arrays=arrays,
            buffers=tuple(buffers),
            changed=tuple(sorted(run.server.changing - set(order.changing))),
            summed_lr=tuple(float(value) for value in result.summed_lr),
            losses=() if result.loss is None else (result.loss,),
        )

    def vectors(self, algorithm: Algorithm) -> dict[str, np.ndarray]:
        """Return what the client keeps after its round."""
        kept: dict[str, np.ndarray] = {}
        for key, part in _keepers(algorithm).items():
            for name, held in part.client_vectors.items():
                vector = held.get(self._order.client)
                if vector is not None:
                    kept[f"{key}.{name}"] = to_array(vector)
        return kept


def _keepers(algorithm: Algorithm) -> dict[str, Part]:
    """Return the parts that may keep something of a client, by name."""
    return by_key(walk(algorithm.chain, algorithm.schedule, algorithm.objective, algorithm.optimizers))
