"""Defaults of settings that depend on the user who runs the node."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kvstore.core.errors import ConfigError


def default_data_dir() -> Path:
    """Where a node keeps its identity. Raises ConfigError when this user has no home to keep it in."""
    state, home = os.environ.get("XDG_STATE_HOME"), os.environ.get("HOME", "")
    if state and os.path.isabs(state):
        return Path(state) / "kvstore"
    if not os.path.isabs(home) or home == "/" or not os.path.isdir(home):
        raise ConfigError(
            f"HOME is {home or 'not set'!r}, no directory to keep the node's identity in; set data_dir", key="data_dir"
        )
    return Path(home) / ".local" / "state" / "kvstore"


def default_socket() -> Path:
    """The unix socket that a node and the clients of its host meet at."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "kvstore" if runtime else Path(tempfile.gettempdir()) / f"kvstore-{os.getuid()}"
    return base / "node.sock"
