"""Trials: clients train alone and in a stack, and everything that could differ is compared."""
