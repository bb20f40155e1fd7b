"""``python -m equalbits``."""

import atexit
import os
import sys

from equalbits.cli import main

code = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # Everything is written and the peers have parted. The threads that torch keeps for talking to them now and then
    # abort a process that ends the usual way, after its work is done. What was asked to be done at the end
    # still is: those that decode pictures are sent home, and their semaphores given back.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
