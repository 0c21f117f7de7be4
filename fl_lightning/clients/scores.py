"""The scores of clients that a sampler must know before it draws them."""

from __future__ import annotations

from fl_lightning._lightning.progress_bars import with_progress
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.parts.messages import Task


def score_clients(training: LocalTraining, round_index: int, clients: list[int]) -> dict[int, float]:
    """Return the scores of clients at the server's model, by client; call it on all processes.

    Args:
        training: The clients' training; the module holds the server's model.
        round_index: The round that begins, from 0.
        clients: The clients.
    """
    algorithm, sizes, federation = training.algorithm, training.data.client_sizes, training.algorithm.federation
    scores: dict[int, float] = {}
    for client in with_progress(training.trainer, clients[federation.rank :: federation.num_ranks], "Scoring clients"):
        task = Task(0, client, int(sizes[client]), round=round_index)
        scores[client] = algorithm.sampler.score(ClientAtWork(task, algorithm.server.model, training))
    known = {client: score for share in federation.gather(scores) for client, score in share.items()}
    return {client: known[client] for client in clients}
