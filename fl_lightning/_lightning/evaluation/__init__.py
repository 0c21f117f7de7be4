"""Evaluation of federated data, predictions, and steps that leave no trace."""
