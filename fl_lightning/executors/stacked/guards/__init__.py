"""Errors for steps that do more than to compute: that write files, keep tensors or read what a stack hides."""
