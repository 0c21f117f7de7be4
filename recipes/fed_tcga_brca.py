"""FLamby's Fed-TCGA-BRCA benchmark: Cox regression in six regions, nine strategies, beside FLamby's numbers.

    python recipes/fed_tcga_brca.py --help

The recipe itself is `fl_lightning/recipes/fed_tcga_brca.py`, which is installed with the package.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("fl_lightning.recipes.fed_tcga_brca", run_name="__main__", alter_sys=True)
