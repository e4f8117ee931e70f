"""malloc in a process that trains: what is freed is kept for the next step."""

import ctypes
import sys

__all__ = ["keep_freed_memory"]


def keep_freed_memory() -> bool:
    """Makes malloc keep freed memory for the rest of the process; returns False where the C library is not GNU's.

    By default a tensor of megabytes goes back to the system when it is freed, or when the step is over, and the next one is
    mapped page by page: in training an eighth of the time (`experiments/RESULTS.md`).
    """
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3  # malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    values = {m_mmap_threshold: 2**25, m_trim_threshold: 2**31 - 1, m_top_pad: 2**27}  # 2**25 is glibc's maximum
    accepted = [mallopt(name, value) == 1 for name, value in values.items()]
    return all(accepted)
