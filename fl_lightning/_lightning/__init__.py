"""The only place that touches Lightning's private names.

Everything else of the library uses Lightning's public interface, or the two loops defined here. The names in use are
listed and checked by ``tests/lightning/test_contract.py``, which notices a Lightning release that changes one.
"""

from fl_lightning._lightning.version import check_version

check_version()
