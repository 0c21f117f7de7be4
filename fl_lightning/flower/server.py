"""The server's side: an executor whose clients are other machines."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset

from fl_lightning._lightning.logs.client_log import log_means
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.data import ClientDatasetsModule
from fl_lightning.executors import Executor
from fl_lightning.flower.door import refuse
from fl_lightning.flower.kept import Turn
from fl_lightning.flower.orders import (
    Answer,
    Order,
    check_version,
    describe_algorithm,
    describe_data,
    describe_trainer,
    options_to_text,
    parts_on_both_sides,
    state_arrays,
    state_of,
    versions,
)
from fl_lightning.flower.records import Grid, message_to, received
from fl_lightning.flower.tensors import (
    layout_digest,
    pack_model,
    to_array,
    traveling_buffers,
    unpack_result,
    values_digest,
)
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Payload, Task, Upload
from fl_lightning.parts.objectives.corrections import Term
from fl_lightning.settings import Count, Positive, check_arguments

if TYPE_CHECKING:
    from flwr.app import Message

#: Flower's numbers of errors that say nothing of the client's program: the message or the node is lost.
_LOST = {3, 4, 5}
_WAIT_SECONDS = 1.0
#: Messages of a client that are remembered, so that a round that broke off can come again.
_TURNS = 4


class FlowerClients(Executor):
    """Trains real clients: each is a Flower SuperNode with data of its own, by :func:`train_client`.

    The result is the simulation's, bit for bit, on machines that compute alike. Clients train at the same time. One
    that does not answer in time has dropped out of the round; it takes part in later ones. The server begins when all
    clients are connected, and asks each once for its number of samples.

    Args:
        grid: Flower's grid, which the server's ``main`` gets.
        num_clients: Clients of the federation, K.
        timeout: Seconds that clients have for a round, and for the first question.

    Raises:
        ValueError: When a fit begins, if an algorithm, the trainer or the data ask for what real clients cannot do; if
            clients do not agree on their numbers; in a round, if a client's message is of another run, version or
            shape.
        RuntimeError: If clients do not connect in time, or a client's program ends with an error.

    Example:
        >>> clients = FlowerClients(grid, num_clients=3)  # doctest: +SKIP
        >>> trainer = L.Trainer(max_epochs=3, callbacks=[FedAvg(1.0, executor=clients)])  # doctest: +SKIP
        >>> trainer.fit(module, datamodule=clients.data_module(val=val_set))  # doctest: +SKIP
    """

    def __init__(self, grid: Grid, num_clients: Count, timeout: Positive = 600.0) -> None:
        self.grid = grid
        self.num_clients = num_clients
        self.timeout = timeout
        check_arguments(self, {"num_clients": num_clients, "timeout": timeout})
        #: What each connected node has said of itself.
        self._sites: dict[int, _Site] = {}
        #: The clients' names for themselves, in the order of their numbers; empty until all are known.
        self._names: list[str] = []
        self._sizes: list[int] = []
        #: Digests by which a client sees that its module is the server's, once a fit has begun.
        self._digests: dict[str, str] = {}
        self.reset()

    def reset(self) -> None:
        """Begin a new fit, in which no client has trained yet."""
        self._run = uuid.uuid4().hex
        #: The last messages whose answers the server took, of each client.
        self._counted: dict[int, list[Turn]] = {}

    def describe(self) -> str:
        """Return how clients train."""
        return f"on {self.num_clients} machines of their own"

    # ---- the clients ----

    def data_module(
        self, val: Dataset[Any] | None = None, test: Dataset[Any] | None = None, **options: Any
    ) -> ClientDatasetsModule:
        """Return the server's data: the clients' numbers of samples, and the server's own sets.

        Args:
            val: The validation set.
            test: The test set.
            **options: Other arguments of :class:`~fl_lightning.ClientDatasetsModule`, such as ``batch_size``.

        Raises:
            RuntimeError: If clients do not connect in time.
        """
        self._meet()
        clients = [_Elsewhere(client, size) for client, size in enumerate(self._sizes)]
        return ClientDatasetsModule(clients, val=val, test=test, **options)

    def _meet(self) -> None:
        """Wait until all clients are connected, and number them."""
        deadline = time.monotonic() + self.timeout
        self._ask_new_nodes()
        while len(self._nodes_by_name()) < self.num_clients:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"After {self.timeout:g} seconds the clients {sorted(self._nodes_by_name())} are connected, and "
                    f"{self.num_clients} are needed. Start the other SuperNodes, each with its own "
                    "--node-config 'client=...', or give a longer `timeout`."
                )
            time.sleep(_WAIT_SECONDS)
            self._ask_new_nodes()
        found = sorted(self._nodes_by_name(), key=_order_of_name)
        if len(found) > self.num_clients:
            raise ValueError(f"`num_clients` must be the clients that are connected, {found}, got {self.num_clients}.")
        if self._names and found != self._names:
            raise ValueError(f"The clients of the run are {self._names}, and {found} are connected. Connect the same.")
        numbered = [name for name in found if name.isdecimal()]
        if numbered and found != [str(number) for number in range(self.num_clients)]:
            raise ValueError(f"Clients must be numbered from 0 to {self.num_clients - 1}, or have names, got {found}.")
        self._names = found
        nodes = self._nodes_by_name()
        self._sizes = [self._sites[nodes[name]].samples for name in found]

    def _ask_new_nodes(self) -> None:
        """Ask the nodes that are not known yet who they are, and forget those that have left."""
        nodes = list(self.grid.get_node_ids())
        self._sites = {node: site for node, site in self._sites.items() if node in nodes}
        new = [node for node in nodes if node not in self._sites]
        questions = [message_to(node, "query", versions(), self.timeout) for node in new]
        for reply in self._replies(questions):
            parcel = received(reply)
            check_version(parcel)
            node = int(reply.metadata.src_node_id)
            self._sites[node] = _Site(str(parcel.values["name"]), int(parcel.values["samples"]))  # type: ignore[arg-type]

    def _nodes_by_name(self) -> dict[str, int]:
        """Return the newest node of each client."""
        return {site.name: node for node, site in self._sites.items()}

    def _replies(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Send messages, and yield the replies that come in time.

        Raises:
            RuntimeError: If a client's program ended with an error.
        """
        if not messages:
            return
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            if not reply.has_error():
                yield reply
                continue
            error = reply.error
            node = int(reply.metadata.src_node_id)
            name = self._sites[node].name if node in self._sites else f"at node {node}"
            if error.code not in _LOST:
                raise RuntimeError(f"Client {name} ended with an error: {error.reason}")
            rank_zero_warn(f"Client {name} cannot be reached: {error.reason}")

    # ---- a fit ----

    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        """Check what is asked for, and meet the clients."""
        refuse(algorithm, training)
        self._meet()
        sizes = training.data.client_sizes.tolist()
        if sizes != self._sizes:
            raise ValueError(
                f"The data module has clients of {sizes} samples, and the connected ones have {self._sizes}. Give "
                "`datamodule=FlowerClients.data_module(...)`, which has their sizes."
            )
        run = algorithm.run
        self._digests = {"layout": layout_digest(run), "first": values_digest(run.federation.model)}

    def score(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> dict[int, float]:
        """Let the clients of the tasks score themselves at the model that they receive."""
        fit = _FitAtServer(self, training, algorithm)
        model_of = algorithm.schedule.model_of
        orders = [fit.order(task, model_of(task.client, algorithm.server.model), is_look=True) for task in tasks]
        answers = self._ask(orders)
        scores = dict.fromkeys((task.client for task in tasks), float("nan"))
        for order in orders:
            if order.client in answers:
                fit.check(order, answers[order.client])
                (scores[order.client],) = answers[order.client].scores
        return scores

    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[Upload]:
        """Let the clients of the tasks train, and yield what they send, in the order of slots."""
        # All trainings of a client that share a message are done together, and asked for once. What a further message
        # leaves stays at the client.
        tasks = [task for task in tasks if task.phase == task.message]
        if not tasks:
            return
        self._forget_from((tasks[0].round, tasks[0].message))
        fit = _FitAtServer(self, training, algorithm)
        orders = [fit.order(task, algorithm.run.round.sent(task)) for task in tasks]
        answers = self._ask(orders)
        for task, order in zip(tasks, orders, strict=True):
            training.show([task])
            if task.client not in answers:
                continue
            answer = answers[task.client]
            fit.check(order, answer)
            upload = None if task.phase else fit.upload(task, answer)
            turns = self._counted.get(task.client, [])
            self._counted[task.client] = [*turns, (task.round, task.message)][-_TURNS:]
            training.client_loop.count_elsewhere(answer.batches, answer.all_steps)
            log_means(training.trainer.lightning_module, answer.logged)
            if upload is not None:
                yield upload

    def _ask(self, orders: Sequence[Order]) -> dict[int, Answer]:
        """Send orders to the clients that are connected, and return the answers that come in time, by client."""
        self._ask_new_nodes()
        nodes = self._nodes_by_name()
        questions = []
        for order in orders:
            if order.name in nodes:
                questions.append(message_to(nodes[order.name], "train", order.to_parcel(), self.timeout))
        answers: dict[int, Answer] = {}
        for reply in self._replies(questions):
            answer = Answer.from_parcel(received(reply))
            answers[answer.client] = answer
        return answers

    def _forget_from(self, turn: Turn) -> None:
        """Forget answers to a message and to later ones: a round that broke off comes again."""
        for client, turns in self._counted.items():
            self._counted[client] = [each for each in turns if each < turn]

    def counted_before(self, client: int, turn: Turn) -> Turn:
        """Return the message before another one whose answer was taken last; nothing if there was none."""
        turns = [each for each in self._counted.get(client, []) if each < turn]
        return turns[-1] if turns else ()

    def state_dict(self) -> dict[str, Any]:
        """Return the fit's name, the clients' names, and of which messages each one's answers were taken last."""
        counted = {client: [list(turn) for turn in turns] for client, turns in self._counted.items()}
        return {"run": self._run, "names": self._names, "counted": counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a fit of a checkpoint."""
        self._run = state["run"]
        self._names = list(state["names"])
        self._counted = {client: [tuple(turn) for turn in turns] for client, turns in state["counted"].items()}


@dataclass(frozen=True)
class _Site:
    """A site, as it says of itself."""

    name: str
    samples: int


class _Elsewhere(Dataset[Any]):
    """The samples of a client that is another machine: only their number is known.

    Args:
        client: The client's number.
        size: Number of its samples.
    """

    def __init__(self, client: int, size: int) -> None:
        self._client = client
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> Any:
        raise RuntimeError(
            f"The samples of client {self._client} are at its site, and do not leave it. Leave out what trains or "
            "evaluates on them at the server, such as CentralTwin."
        )


class _FitAtServer:
    """Makes the orders of a round, and reads the answers.

    Args:
        clients: The executor.
        training: The server's training, which trains no client itself.
        algorithm: The algorithm.
    """

    def __init__(self, clients: FlowerClients, training: LocalTraining, algorithm: Algorithm) -> None:
        self._clients = clients
        self._training = training
        self._algorithm = algorithm
        self._run = algorithm.run
        self._changing = traveling_buffers(self._run, self._run.server.changing)
        settings = training.settings
        self._common: Mapping[str, Any] = {
            "run": clients._run,
            "num_clients": clients.num_clients,
            "all_samples": sum(clients._sizes),
            "seed": settings.run_seed,
            "local_epochs": settings.local_epochs,
            "local_steps": settings.local_steps or 0,
            "algorithm": describe_algorithm(algorithm),
            "trainer": describe_trainer(training.trainer),
            "data": describe_data(training.data),
            "max_epochs": training.trainer.max_epochs,
            **clients._digests,
            "changing": tuple(sorted(self._run.server.changing)),
        }

    def order(self, task: Task, model: Tensor, *, is_look: bool = False) -> Order:
        """Return the order of a task.

        Args:
            task: The task.
            model: The model that the server sends, shape ``(size,)``.
            is_look: Whether the client is scored at the model, and does not train.
        """
        clients = self._clients
        turn = (task.round, task.message)
        # Before a draw no learning rates are known yet.
        options = "" if is_look else options_to_text(self._training.client_loop.optimizers.options_of(task.round))
        arrays = pack_model(self._run, model, self._changing)
        if not is_look:
            for name, part in parts_on_both_sides(self._algorithm).items():
                arrays |= state_arrays(name, part.state_down(task))
        terms: dict[str, Any] = {}
        if self._algorithm.objective.runs_where == "server" and not is_look and not task.phase:
            term = self._term(task, model)
            terms = {"pull": term.pull, "weight_decay": term.weight_decay}
            if term.linear is not None:
                arrays["linear"] = to_array(term.linear)
        return Order(
            client=task.client,
            name=clients._names[task.client],
            samples=task.num_samples,
            round=task.round,
            message=task.message,
            is_look=is_look,
            counted=clients.counted_before(task.client, turn),
            options=options,
            arrays=arrays,
            **self._common,
            **terms,
        )

    def _term(self, task: Task, model: Tensor) -> Term:
        """Return the term that the objective adds for a client, which is numbers.

        Raises:
            TypeError: If the objective asks for something else.
        """
        correction = self._algorithm.correction(ClientAtWork(task, model, model, self._training))
        if correction is None:
            return Term()
        if not isinstance(correction, Term):
            objective = self._algorithm.objective
            raise TypeError(
                f'`correction` of {objective!r} must return a Term or None where `runs_where` is "server": only a '
                f"term's numbers travel; got {type(correction).__name__}. Say where it runs, or train without Flower."
            )
        return correction

    @staticmethod
    def check(order: Order, answer: Answer) -> None:
        """Raise ``ValueError`` if an answer is of another run, round or message."""
        asked = (order.run, order.round, order.message)
        if (answer.run, answer.round, answer.message) != asked:
            raise ValueError(
                f"Client {order.client} answered for round {answer.round + 1} of the run {answer.run}, and was asked "
                f"for round {order.round + 1} of {order.run}."
            )

    def upload(self, task: Task, answer: Answer) -> Upload:
        """Return what a client has sent.

        Raises:
            ValueError: If the answer is of another shape.
        """
        if not answer.has_model:
            return Upload(task, None)
        federation = self._run.federation
        for name, part in parts_on_both_sides(self._algorithm).items():
            part.take_state_up(task, state_of(name, answer.arrays, federation.model.device))
        start = self._algorithm.chain.without_kept(self._run.round.sent(task))
        try:
            vector = unpack_result(self._run, start, answer.arrays, answer.buffers)
        except ValueError as error:
            error.add_note(f"It is the answer of client {task.client} in round {task.round + 1}.")
            raise
        result = ClientResult(
            task,
            start,
            vector,
            answer.steps,
            list(answer.summed_lr),
            num_parameters=federation.num_parameters,
            payload=Payload(answer.values, answer.bits_per_value, answer.extra_bits),
            score=answer.scores[0] if answer.scores else None,
            loss=answer.losses[0] if answer.losses else None,
            numbers=answer.numbers,
        )
        if not result.is_finite:
            return Upload(task, None)
        return Upload(task, result, frozenset(answer.changed))


def _order_of_name(name: str) -> tuple[int, str]:
    """Return by what clients are sorted: numbers by their value, then names."""
    return (int(name), "") if name.isdecimal() else (2**62, name)
