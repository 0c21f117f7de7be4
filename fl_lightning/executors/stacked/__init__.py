"""Many clients at once, as one stack of models.

Read in this order: ``capture`` has PyTorch capture one client's ``training_step``, ``graph`` maps it over the clients,
``check`` compares each new graph with the module itself, and ``weighted`` fills short batches up. ``stack`` holds the
models, ``sources`` gives their batches, and ``training`` takes their steps, with ``optimizer`` and ``corrections``.
"""
