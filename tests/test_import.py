"""What importing the library loads, in the one fresh interpreter of the default tests."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import lightning, torchmetrics  # these look for torchvision themselves
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            raise ImportError("torchvision cannot be imported")
for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
    del sys.modules[name]
sys.meta_path.insert(0, Block())
before = set(sys.modules)
import fl_lightning
fl_lightning.FedAvg
print(*sorted(set(sys.modules) - before))
"""


def test_the_library_needs_neither_torchvision_nor_heavy_packages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "fl_lightning.loop" in loaded
    heavy = {"cvxpy", "datasets", "dp_accounting", "matplotlib", "pandas", "pyarrow", "sklearn", "torchvision", "wandb"}
    assert not {name.split(".")[0] for name in loaded} & heavy
    late = ("fl_lightning.models", "fl_lightning.diagnostics", "fl_lightning.experiment", "fl_lightning.report")
    assert not [name for name in loaded if name.startswith(late)]
