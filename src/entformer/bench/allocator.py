"""Keeps freed memory in the process. In: nothing. Out: whether the C library took the request.

A tensor of megabytes goes back to the system when it is freed, and the next one comes page by page, each with a fault. That is
alike for all contestants, costs as much as the fastest of them, and happens or not depending on what was freed before.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h of the GNU C library
_LARGEST_MMAP_THRESHOLD = 2**25  # it takes no more; larger tensors are still mapped and unmapped


def keep_freed_memory() -> bool:
    """For the rest of the process; False where the C library is not GNU's."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**27}
    taken = [mallopt(name, value) == 1 for name, value in wanted.items()]
    return all(taken)
