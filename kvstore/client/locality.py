"""Which addresses are of this machine."""

from __future__ import annotations

import functools
import socket


@functools.lru_cache(maxsize=1024)
def is_local(host: str) -> bool:
    """Whether a literal address is one of this machine. A name is not looked up, and counts as another's."""
    if host == "localhost":
        return True
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return host not in ("0.0.0.0", "::")
