"""Figs. 3.2 and 3.3 of van Lier 2018: web pages by topic, mixed from d_0 to d_100 and d_iid.

    python recipes/dmoz_distributions.py --help

The recipe itself is `fl_lightning/recipes/dmoz_distributions.py`, which is installed with the package.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("fl_lightning.recipes.dmoz_distributions", run_name="__main__", alter_sys=True)
