"""Which NUMA nodes a node's memory comes from: near to the RDMA devices that read it."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Sequence

from kvstore.transport.fabric.affinity import Host, Nic

_log = logging.getLogger(__name__)
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED, _INTERLEAVE = 1, 3
_MASK_BITS = 1024


def memory_nodes(setting: Sequence[int] | None, host: Host, nics: Sequence[Nic]) -> tuple[int, ...]:
    """The NUMA nodes to take memory from; none: wherever the kernel gives it.

    ``setting``: those that were configured, empty for none of them in particular, None for "auto": the nodes of the
    RDMA devices in use, unless these are all nodes.
    """
    if setting is not None:
        return tuple(setting)
    found = tuple(sorted({nic.device.numa for nic in nics if nic.device is not None and nic.device.numa >= 0}))
    return found if set(found) < set(host.numa_nodes) else ()


def bind_memory(nodes: Sequence[int]) -> bool:
    """Pages that this thread, and those it starts from now on, touch first come from these nodes as long as they have
    room: from a single one, or from several in turn. Whether the kernel took it."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if not nodes or number is None or max(nodes) >= _MASK_BITS:
        return False
    words = (ctypes.c_ulong * (_MASK_BITS // 64))()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    policy = _PREFERRED if len(nodes) == 1 else _INTERLEAVE
    if libc.syscall(number, policy, ctypes.byref(words), _MASK_BITS):
        _log.warning("memory is not bound to NUMA nodes %s: %s", list(nodes), os.strerror(ctypes.get_errno()))
        return False
    _log.info("memory comes from NUMA nodes %s", list(nodes))
    return True
