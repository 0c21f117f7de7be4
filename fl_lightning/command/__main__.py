"""``python -m fl_lightning.command`` is the command ``fl-lightning``."""

import sys

from fl_lightning.command import main

sys.exit(main())
