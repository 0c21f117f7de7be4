"""The folder in which files of data and weights are looked for."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "FL_LIGHTNING_DATA"


def data_folder() -> Path:
    """Return the folder that the environment variable ``FL_LIGHTNING_DATA`` names, else ``data``."""
    return Path(os.environ.get(ENVIRONMENT_VARIABLE, "data"))
