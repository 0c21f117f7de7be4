"""One client's local training: its batches, its state vector, its corrections."""

from fl_lightning.clients.batches import ClientBatches, LocalSettings
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.clients.training import ClientAtWork, LocalTraining

__all__ = ["ClientAtWork", "ClientBatches", "LocalSettings", "LocalTraining", "StateVector"]
