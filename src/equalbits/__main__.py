"""``python -m equalbits``."""

import sys

from equalbits.cli import main

sys.exit(main())
