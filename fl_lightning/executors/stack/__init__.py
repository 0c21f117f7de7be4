"""Many clients at once, as one stack of models, whose steps the compiler has made.

``models`` holds the clients' models, one a row; ``batches`` and ``sources`` give their batches; ``randomness`` draws
each client's random numbers; ``update`` steps the models, with ``corrections`` for what local objectives add,
``optimizer`` for the user's optimizer and ``inplace_sgd`` where that is plain SGD; ``steps`` takes an optimizer step in
one of two ways, and ``training`` all of them. ``memory`` says how many clients a
stack may have. The worked example is in :mod:`fl_lightning.executors.compiler`.
"""
