"""The only place that touches Lightning's private names.

Everything else of the library uses Lightning's public interface, or the two loops defined here. The names in use are
listed and checked by ``tests/lightning/test_contract.py``, which notices a Lightning release that changes one.
"""

from __future__ import annotations

import lightning
from packaging.version import Version

MINIMUM = Version("2.6")
BELOW = Version("2.7")


def check_version(installed: str = lightning.__version__) -> None:
    """Raise ``ImportError`` when the installed Lightning is outside the supported range."""
    if not MINIMUM <= Version(installed) < BELOW:
        raise ImportError(
            f"fl-lightning replaces Lightning's fit loop and knows the loops of lightning>={MINIMUM},<{BELOW}; "
            f'{installed} is installed. Install a supported release: pip install "lightning>={MINIMUM},<{BELOW}".'
        )


check_version()
