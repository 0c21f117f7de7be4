"""Weights that somebody else wrote into the module between two rounds or two fits: they are taken, or refused."""

from __future__ import annotations

import warnings


def check_adoption(shows_other: bool) -> None:
    """Raise ``RuntimeError`` if weights that were written into the module cannot become the server's.

    Args:
        shows_other: Whether models circulate, or the module held another model than the server's.
    """
    if shows_other:
        raise RuntimeError(
            "The module's weights were changed between two rounds, and this algorithm cannot continue from them: "
            "clients work on models that were sent earlier, or the module holds another model than the server's. "
            "Change weights only after an aggregation (`fed/aggregated` is 1)."
        )


def warn_of_other_weights() -> None:
    """Warn that a fit which goes on while models are under way does not begin with the module's weights."""
    warnings.warn(
        "The module holds other weights than the last fit left, such as those of a checkpoint that was tested. Models "
        "are still under way, and the fit goes on with these, not from the module's weights. To begin anew from the "
        "module's weights give the Trainer a new callback.",
        stacklevel=2,
    )
