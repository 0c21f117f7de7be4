"""How far the steps of SGD with momentum go."""

from __future__ import annotations


def fednova_norm(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return |a| of FedNova: how far steps along a constant gradient go, in steps of plain SGD.

    Args:
        steps: Number of steps.
        momentum: Momentum of SGD, in [0, 1), without dampening and without Nesterov's rule.
        pull: Learning rate times the weight of a proximal term, which draws the client back.
    """
    if not momentum and not pull:
        return float(steps)
    way = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * way
        way += velocity
    return way
