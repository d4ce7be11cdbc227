"""The program of support/scripts.py: it imports torch, and forks.

In: requests, on a socket whose number is its first word. Out: a process for each, which is the script.
"""

import gc
import os
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    gc.disable()
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork has none of the threads that torch would have begun
    sys.path.append(str(Path(__file__).parents[1]))
    import torch.utils.data  # noqa: F401

    from support import fork_server, scripts

    gc.freeze()
    gc.enable()
    scripts.become(*fork_server.serve(socket.socket(fileno=int(sys.argv[1]))))
