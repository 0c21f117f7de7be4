"""Many clients at once, as one stack of models, whose steps the compiler has made.

``models`` holds the clients' models, one a row; ``batches`` and ``sources`` give their batches; ``randomness`` draws
each client's random numbers; ``training`` takes the steps, with ``corrections`` for what local objectives add,
``optimizer`` for the user's optimizer and ``inplace_sgd`` where that is plain SGD. ``memory`` says how many clients a
stack may have. The worked example is in :mod:`fl_lightning.executors.compiler`.
"""
