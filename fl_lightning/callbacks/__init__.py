"""Callbacks for the Trainer that are no algorithms."""

from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.callbacks.client_models import client_model, load_preprocessing
from fl_lightning.callbacks.example_privacy import ExamplePrivacy
from fl_lightning.callbacks.frozen_prefix_cache import FrozenPrefixCache

__all__ = [
    "ClientMetrics",
    "ExamplePrivacy",
    "FederatedCheckpoint",
    "FrozenPrefixCache",
    "client_model",
    "load_preprocessing",
]
