"""`python -m mountd --config-fd N --status-fd M`: the daemon of one mount, as `mlfs mount` starts it.

Garbage is not looked for while the daemon's modules are imported, nor ever after among what they are made of: all of it
stays until the process ends, and to look takes a third of the time until a mount serves.
"""

from __future__ import annotations

import gc
import sys

gc.disable()

from mountd.daemon import main  # noqa: E402 - after what its docstring says

gc.freeze()
gc.enable()
sys.exit(main())
