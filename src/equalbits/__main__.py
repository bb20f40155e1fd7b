"""``python -m equalbits``."""

import atexit
import os
import sys

from equalbits.cli import main

code = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # torch's communication threads sometimes abort a distributed process during normal interpreter shutdown, after all
    # results are written. Run the exit handlers (they stop the image decoding workers), then skip that shutdown.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
