"""Callbacks: aggregation callbacks, one algorithm family a file, and others that go with them."""
