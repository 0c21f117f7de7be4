"""Segmentation of pets: one client for each breed, whose pictures are of a size of its own.

    python recipes/pet_segmentation.py --help

The recipe itself is `fl_lightning/recipes/pet_segmentation.py`, which is installed with the package.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("fl_lightning.recipes.pet_segmentation", run_name="__main__", alter_sys=True)
