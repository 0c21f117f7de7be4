"""Adapters and full fine-tuning of a small transformer on Shakespeare's roles: accuracy against bytes sent.

    python recipes/lora_plays.py --help

The recipe itself is `fl_lightning/recipes/lora_plays.py`, which is installed with the package.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("fl_lightning.recipes.lora_plays", run_name="__main__", alter_sys=True)
