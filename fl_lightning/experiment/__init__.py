"""Experiments: methods x data sets x folds x seeds, tuned, resumed, tested for significance."""
