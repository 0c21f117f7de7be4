"""Differences that are known, with their causes. Whoever mends one takes it out: the tests insist on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zoo.outcome import ASPECTS

BOTH = ("vectorized", "auto")


@dataclass(frozen=True)
class Difference:
    """Entries of which an executor leaves something else behind than the loop by hand.

    Attributes:
        cause: Why.
        entries: Their names.
        aspects: What differs; everything, if the fit fails.
        executors: Under which executors.
    """

    cause: str
    entries: Sequence[str]
    aspects: Sequence[str] = ("weights", "values", "events")
    executors: Sequence[str] = BOTH


MASKS = [
    *("Dropout", "Dropout2d", "AlphaDropout", "FeatureAlphaDropout", "Gaussian noise by randn_like"),
    *("stochastic depth", "Gumbel softmax", "denoising autoencoder", "samples actions"),
]
STEP_VALUES = [
    *("logs each step", "logs step and epoch", "shared step, returns a dict", "one_hot, topk, several logs"),
    *("logs every other batch", "EarlyStopping on a step value"),
]
KNOWN = [
    Difference("a stack draws other masks than each client alone", MASKS, executors=["vectorized"]),
    Difference(
        "a stack draws one number of numpy for all clients", ["mixup with numpy's Beta"], executors=["vectorized"]
    ),
    Difference("a stack draws once for all clients", ["a generator of its own"], ASPECTS, ["vectorized"]),
    Difference("values of single steps are means over a stack", STEP_VALUES, ["events"]),
    Difference("a value that the last step did not log is another client's", ["logs every other batch"], ["values"]),
    # what begins after the trial
    Difference(
        "begins to draw after the trial", ["dropout from the second epoch on", "dropout added in the second round"]
    ),
    Difference("reads a shared counter after the trial", ["global_step from the second round on"]),
    Difference(
        "a hook is registered after the trial",
        ["parameter hook in the second round", "optimizer hook in the second round"],
    ),
    Difference(
        "on_client_start sets something after the trial",
        [f"own {what} in the second round" for what in ("learning rate", "attribute", "weights")],
    ),
    Difference("uses a reference after the trial", ["list used from the second round on"], ASPECTS),
    Difference("uses a reference after the trial's last batch", ["list used from the ninth batch on"], ASPECTS),
    Difference("a stack that breaks after the trial ends the fit", ["item() from the second round on"], ASPECTS),
    Difference("a stack that breaks counts its steps", ["returns None from the second round on"], ["values", "events"]),
    Difference("calls the logger after the trial", ["logger called from the second round on"], ["events"]),
    Difference(
        "keeps something after the trial",
        ["list filled from the second round on", "tensor kept from the second round on"],
        ["state"],
    ),
    # what the try-out leaves behind
    Difference(
        "a copy shares what is outside of the module", ["class attribute", "default argument", "closure"], ["state"]
    ),
    Difference("a copy shares globals", ["global Counter"], ["state"], ["auto"]),
]


def cause_of(name: str, executor: str, aspect: str) -> str | None:
    """Return why an entry is known to differ, or ``None``."""
    for known in KNOWN:
        if name in known.entries and executor in known.executors and aspect in known.aspects:
            return known.cause
    return None
