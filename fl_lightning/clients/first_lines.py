"""The first lines of a fit."""

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.data import FederatedDataModule
from fl_lightning.parts.samplers.base import ClientSampler


def print_clients(data: FederatedDataModule, sampler: ClientSampler, callback: object) -> None:
    """Say with which settings a fit begins, and how many clients train, validate and test.

    Args:
        data: The data, set up.
        sampler: Draws the clients of a round.
        callback: The aggregation callback, whose representation has its settings.
    """
    rank_zero_info(repr(callback))
    number = sampler.cohort_size(data.num_clients)
    each_round = sampler.describe_round(data.num_clients)
    line = f"{data.describe_clients()}; {each_round} in each round. {data.describe_unused()}"
    rank_zero_info(line.rstrip())
    fraction = sampler.number_or_fraction
    if data.num_clients == 1:
        rank_zero_warn(
            "Only one client trains, so this is not federated learning. Use more clients, or a split that leaves more "
            "for training."
        )
    elif number == 1 and not sampler.counts_results and isinstance(fraction, float):
        rank_zero_warn(
            f"Only 1 of {data.num_clients} clients trains in each round (`clients_per_round={fraction}` "
            f"is a fraction, rounded), so {type(callback).__name__} averages nothing. Give a number of clients, such "
            "as `clients_per_round=2`, or `clients_per_round=1.0` for all."
        )
