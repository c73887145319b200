"""``python -m profilerkit``."""

import sys

from profilerkit.cli import main

sys.exit(main())
