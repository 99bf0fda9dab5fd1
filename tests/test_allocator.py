"""Memory that a step gives back is there for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, torch, zoo.policy
count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in (2**22, 2**25): # 16 MiB, kept; 128 MiB, a mapping of its own
    found = []
    for _ in range(4):
        before = count()
        torch.empty(size).fill_(1)
        found.append(count() - before)
    print(found[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_what_is_freed_is_not_fetched_again_unless_it_is_large_or_the_user_wants_otherwise() -> None:
    def faults(**environment: str) -> list[int]:
        run = [sys.executable, "-c", _FAULTS]
        told = subprocess.run(run, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        return [int(line) for line in told.stdout.split()]

    kept, large = faults()
    assert kept < 100
    assert large > 100
    assert min(faults(MALLOC_MMAP_THRESHOLD_="65536")) > 100
