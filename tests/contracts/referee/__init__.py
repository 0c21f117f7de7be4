"""A referee for the table *methods x set-ups*: every method written again, from its paper, as a plain loop in torch.

A fit of the library notes which samples each client's ``training_step`` saw (``fitting.py``). The referee trains on
the same batches (``rounds.py``, ``methods.py``) and says which models the server and the clients must hold, and how
many bytes were sent. Nothing of the library's mathematics is used. A new method is one line of ``methods.METHODS``, and
a new set-up one line of ``setups.SETUPS``.
"""
