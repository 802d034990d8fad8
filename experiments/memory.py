"""Refuses, in one line, what this machine has no memory for.

Asked before anything is allocated: XLA allocates late and on threads of its own, and a device that
fails may leave the others waiting for it, or a process on borrowed memory to be killed.
"""

import os
from pathlib import Path
from typing import Any

import jax

from experiments.errors import SMALLER, UserError

LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def available() -> float:
    """Bytes of all accelerators together, or of this machine where there are none."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    if all(limits):
        return sum(filter(None, limits))
    if not hasattr(os, "sysconf"):
        return float("inf")
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = LIMIT.read_text().strip() if LIMIT.exists() else "max"
    return min(there, int(limit)) if limit.isdecimal() else there


def need(size: float, what: str) -> None:
    """UserError if `what` takes more than the `size` bytes that there are."""
    if size > (there := available()):
        raise UserError(
            f"{what} needs {_shown(size)} of memory, and there are {_shown(there)}; {SMALLER}"
        )


def need_for_program(program: Any, what: str, devices: int) -> None:
    """`need` of a compiled program on so many devices, its arguments included."""
    stats = program.memory_analysis()
    if stats is not None:  # not every backend tells
        outputs = stats.output_size_in_bytes - stats.alias_size_in_bytes
        one = stats.argument_size_in_bytes + outputs + stats.temp_size_in_bytes
        need(devices * one, what)


def need_for_arrays(tree: Any, what: str, times: int = 1) -> None:
    """`need` of arrays or shapes of arrays, so many times."""
    need(times * sum(_bytes(leaf) for leaf in jax.tree.leaves(tree)), what)


def _bytes(leaf: Any) -> int:
    size = 1
    for n in leaf.shape:  # whole numbers of any size, where NumPy's would overflow
        size *= int(n)
    return size * getattr(leaf.dtype, "itemsize", 4)


def _shown(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
