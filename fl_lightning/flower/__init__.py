"""Real clients by Flower, with the bits of the simulation."""

from fl_lightning.flower.server import FlowerClients
from fl_lightning.flower.site import query_client, train_client

__all__ = ["FlowerClients", "query_client", "train_client"]
