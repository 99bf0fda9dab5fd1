"""What the C library does with memory that tensors give back."""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of mallopt(3)


def keep_freed_memory(kept: int = 2**29, block: int = 2**26) -> None:
    """Let glibc keep what is freed for the next step, where it would hand it to the system and fetch it again page by page.

    A copy of a group's cache spends more time in those page faults than in copying. Does nothing with another C library, or where
    the environment sets ``MALLOC_TRIM_THRESHOLD_`` or ``MALLOC_MMAP_THRESHOLD_``.

    Args:
        kept: bytes at the end of the heap that stay.
        block: bytes from which on a block is mapped by itself and goes back at once.
    """
    if platform.libc_ver()[0] == "glibc" and not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & set(os.environ):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM, kept)
        library.mallopt(_MAP, block)
