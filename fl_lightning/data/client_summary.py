"""The line at the start of a fit that counts clients, and warnings of too few."""

from __future__ import annotations

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.parts.sampling import Arrivals, BernoulliSampler, ClientSampler
from fl_lightning.representation import counted


def print_clients(data: FederatedDataModule, sampler: ClientSampler, name: str) -> None:
    """Say in one line how many clients train, validate and test, and how many train in a round.

    Args:
        data: The data, set up.
        sampler: Draws the clients of a round.
        name: The class of the aggregation callback.
    """
    number = sampler.cohort_size(data.num_clients)
    each_round = f"{'about ' * isinstance(sampler, BernoulliSampler)}{number:,} train{'s' * (number == 1)}"
    if isinstance(sampler, Arrivals):
        each_round = f"{counted(number, 'result')} arrive{'s' * (number == 1)}"
    rank_zero_info(f"{data.describe_clients()}; {each_round} in each round. {data.describe_unused()}".rstrip())
    if data.num_clients == 1:
        rank_zero_warn(
            "Only one client trains, so this is not federated learning. Use more clients, or a split that leaves more "
            "for training."
        )
    elif number == 1 and not isinstance(sampler, Arrivals) and isinstance(_fraction_of(sampler), float):
        rank_zero_warn(
            f"Only 1 of {data.num_clients} clients trains in each round (`clients_per_round={_fraction_of(sampler)}` "
            f"is a fraction, rounded), so {name} averages nothing. Give a number of clients, such as "
            "`clients_per_round=2`, or `clients_per_round=1.0` for all."
        )


def _fraction_of(sampler: ClientSampler) -> float | int | None:
    return getattr(sampler, "clients_per_round", None)
