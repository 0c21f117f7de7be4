"""Many clients at once, as one stack of models.

Read in this order: ``stack`` holds the models, ``sources`` gives their batches, ``training`` takes their steps, with
``optimizer`` and ``corrections``, and ``results`` hands in what came out. A step is ``mapped``, by ``torch.func``, or a
``program`` of batched products; ``step_runners`` chooses between the two.

Whether a stack may be used is found out by ``trials``. ``changes`` tells whether a module or its surroundings are
others than before, and ``guards`` raises an error where a step has side effects.
"""
