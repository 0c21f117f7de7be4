"""The scores of clients that a sampler must know before it draws them."""

from __future__ import annotations

from fl_lightning._lightning.progress_bars import with_progress
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.parts.messages import Task


def score_clients(training: LocalTraining, round_index: int) -> None:
    """Score the clients that the sampler must know before its next draw, at the server's model; on all processes.

    Args:
        training: The clients' training; the module holds the server's model.
        round_index: The round that is about to begin, from 0.
    """
    algorithm, sizes = training.algorithm, training.data.client_sizes
    waiting = list(algorithm.sampler.clients_without_score())
    if not waiting:
        return
    federation, scores = algorithm.federation, {}
    for client in with_progress(training.trainer, waiting[federation.rank :: federation.num_ranks], "Scoring clients"):
        task = Task(0, client, int(sizes[client]), round=round_index)
        scores[client] = algorithm.sampler.score(ClientAtWork(task, algorithm.server.model, training))
    algorithm.count_scored(len(waiting))
    known = {client: score for share in federation.gather(scores) for client, score in share.items()}
    algorithm.sampler.take_scores({client: known[client] for client in waiting})
