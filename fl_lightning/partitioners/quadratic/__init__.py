"""Partitions by quadratic programs: sizes, classes and features drawn independently, then reconciled."""
