"""One client's local training."""
