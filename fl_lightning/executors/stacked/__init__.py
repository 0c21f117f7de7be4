"""Many clients at once, as one stack of models."""
