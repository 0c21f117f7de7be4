"""RADFed, or FedAvg, on CIFAR-10: 100 clients by QP, a pre-trained MobileNetV2 trained from its last bottleneck on.

    python recipes/cifar_radfed.py --help

The recipe itself is `fl_lightning/recipes/cifar_radfed.py`, which is installed with the package.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("fl_lightning.recipes.cifar_radfed", run_name="__main__", alter_sys=True)
