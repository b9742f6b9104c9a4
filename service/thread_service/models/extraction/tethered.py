"""Runs a command that ends with the process that started it, however that ends.

    python tethered.py PARENT COMMAND [ARGUMENT ...]

The kernel signals the command when its parent is gone; that outlives the replacement of this program by the command.
Linux only. A script, so that nothing of ours is imported.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM):
        sys.exit("the parent's end cannot be followed")
    if os.getppid() != parent:
        sys.exit("the parent has ended already")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
