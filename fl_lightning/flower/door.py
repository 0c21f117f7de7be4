"""Unsupported features raise an error before a client is asked for anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.loops.hooks import STEP_HOOKS
from fl_lightning.callbacks import ExamplePrivacy
from fl_lightning.clients.optimizer_checks import changes_within_rounds
from fl_lightning.clients.training import LocalTraining
from fl_lightning.flower.tensors import is_sparse
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchanges.compression import Compressor
from fl_lightning.parts.part import Part, walk
from fl_lightning.signatures import is_user_defined


def refuse(algorithm: Algorithm, training: LocalTraining) -> None:
    """Raise ``ValueError`` if real clients cannot train as the algorithm, the trainer or the data ask for."""
    refuse_callbacks(fit_trainer(training.trainer).callbacks)
    for problem in (*_in_parts(algorithm), *_in_exchanges(algorithm), *_in_training(algorithm, training)):
        raise ValueError(f"FlowerClients: {problem}")


def refuse_callbacks(callbacks: Iterable[Callback]) -> None:
    """Raise ``ValueError`` for callbacks that cannot work on either side."""
    for callback in callbacks:
        if isinstance(callback, ExamplePrivacy):
            raise ValueError(
                "FlowerClients: ExamplePrivacy draws its noise from the run's seed, which the server knows, and its "
                "count would end with each round. Give `exchange=LocalDifferentialPrivacy(...)`."
            )
        if isinstance(callback, GradientAccumulationScheduler):
            raise ValueError(
                "FlowerClients: GradientAccumulationScheduler changes an argument of the Trainer that both sides "
                "compare. Give `accumulate_grad_batches` to both."
            )


def _in_parts(algorithm: Algorithm) -> Iterator[str]:
    schedule = algorithm.schedule
    if schedule.asynchronous:
        yield (
            f"clients of {schedule!r} finish on a virtual clock, and real ones in their own time. Give a synchronous "
            "algorithm, such as FedAvg(executor=FlowerClients(...))."
        )
    if any(vars(algorithm.participation).values()):
        yield (
            f"`participation` imagines failures, got {algorithm.participation!r}; real clients fail by themselves. "
            "Leave it out."
        )
    sampler = algorithm.sampler
    if sampler.asks_clients and sampler.runs_where != "client":
        yield _not_known(sampler)
    for part in walk(algorithm.chain.members, schedule, algorithm.objective):
        if part.runs_where is None:
            yield _not_known(part)
    objective = algorithm.objective
    if objective.runs_where == "server" and objective.looks_at_samples:
        yield (
            f"the correction of {objective!r} is made by the server, and looks at the client's samples, which the "
            "server does not have. Give Scaffold(option=2), or another algorithm."
        )


def _not_known(part: Part) -> str:
    if not is_user_defined(type(part)):
        instead = "Leave it out, or take another algorithm"
        if isinstance(part, Compressor):
            instead = "Give TopK, or leave it out"
        return f"{part!r} has no messages for clients on other machines. {instead}."
    return (
        f"it is not known where {part!r} works if a client is another machine. If what it does for a client needs "
        "nothing of the server's state, and the server nothing of what it keeps there, write "
        f'`runs_at = "client"` in the body of the class {type(part).__name__}.'
    )


def _in_exchanges(algorithm: Algorithm) -> Iterator[str]:
    run = algorithm.run
    exchange = algorithm.chain
    whole = run.books.payload
    if exchange.payload_down(whole) != whole:
        yield 'compression with `link="down"` has no messages of its own here. Give `link="up"`.'
    up = exchange.payload_up(whole)
    if up != whole and not is_sparse(up, whole):
        yield f"{exchange.members[1:]} has no messages of its own here. Give TopK, or leave compression out."
    if algorithm.buffers == "local" and run.federation.layout.buffers:
        yield (
            '`buffers="local"` shows the mean of the clients\' buffers, which do not leave them. Give '
            '`buffers="average"`, or PersonalParameters of the layers that have buffers.'
        )
    changes = [member for member in exchange.members if member.changes_updates]
    if changes and algorithm.objective.runs_where != "client":
        yield (
            f"the server learns the state of {algorithm.objective!r} from clients' updates as they are, so `exchange` "
            f"cannot have {changes[0]!r}. Leave one of the two out."
        )


def _hooks_of_clients(callback: Callback) -> list[str]:
    """Return the hooks of a callback that are called while a client trains.

    Lightning's own callbacks have some, such as those of progress bars, which change nothing.
    """
    hooks = [name for name in ("on_client_start", "on_client_end") if hasattr(callback, name)]
    for name in STEP_HOOKS:
        package = getattr(type(callback), name).__module__.partition(".")[0]
        if package not in ("lightning", "pytorch_lightning", "fl_lightning"):
            hooks.append(name)
    return hooks


def _in_training(algorithm: Algorithm, training: LocalTraining) -> Iterator[str]:
    trainer = training.trainer
    if trainer.world_size > 1:
        yield "the server trains no client, so it needs one process. Give Trainer(devices=1)."
    if training.settings.continue_epochs:
        yield "`continue_epochs=True` is kept by the server. Leave it out."
    if training.data.changes is not None:
        yield f"sites say once how many samples they have. Leave out `changes={training.data.changes!r}`."
    for callback in fit_trainer(trainer).callbacks:
        for hook in _hooks_of_clients(callback):
            yield (
                f"{type(callback).__name__} has `{hook}`, which is called where a client trains. Give the callback to "
                "`train_client(callbacks=[...])`."
            )
    if not trainer.lightning_module.automatic_optimization:
        yield "a module with manual optimisation steps its schedules itself, at the client. Use automatic optimisation."
    if changes_within_rounds(trainer):
        yield (
            "a learning-rate schedule with interval='step' walks the mean number of steps of all clients. Give "
            "interval='epoch'; an epoch is a round."
        )
    belongs_to_clients = training.data.eval_client_ids("val") is not None
    if belongs_to_clients and algorithm.has_personal:
        yield (
            "clients are evaluated by models of their own, which do not leave them. Give the server one validation "
            "set, by FlowerClients.data_module(val=...)."
        )
