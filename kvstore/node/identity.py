"""Who a node is: an id that stays in its data directory, a boot id of this start, and the directory's lock."""

from __future__ import annotations

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from kvstore.core.errors import ConfigError, Unavailable
from kvstore.node.config import NodeConfig

_ID_FILE = "node-id"
_LOCK_FILE = "lock"


class InUse(Unavailable):
    """A living node uses this directory."""


@dataclass(frozen=True, slots=True)
class Identity:
    """``node_id`` and ``boot_id`` have 16 bytes. ``lock`` is the open, locked file of the data directory."""

    node_id: bytes
    boot_id: bytes
    lock: int

    def close(self) -> None:
        """Gives the data directory back. Call it last, once."""
        os.close(self.lock)


def claim(data_dir: Path) -> Identity:
    """Locks the data directory, made if need be. Raises InUse or ConfigError."""
    lock = _lock(data_dir)
    try:
        return Identity(_node_id(data_dir), secrets.token_bytes(16), lock)
    except BaseException:
        os.close(lock)
        raise


def peek(data_dir: Path) -> bytes | None:
    """The id of the node that lives, or lived, in this directory. Takes no lock."""
    try:
        text = (data_dir / _ID_FILE).read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(data_dir, error) from None
    return _parse_id(text, data_dir)


def memory_path(config: NodeConfig, node_id: bytes) -> Path:
    """The memory file of a node."""
    return config.memory_file or config.memory_dir / f"kvstore-{node_id.hex()}.mem"


def _lock(data_dir: Path) -> int:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(data_dir, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        raise InUse(
            f"data directory {data_dir} is in use by a living node (process {holder or 'unknown'}); "
            "stop it, or give this one its own data_dir",
            key="data_dir",
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _node_id(data_dir: Path) -> bytes:
    """The stored id; a new one, synced before use, when there is none."""
    known = peek(data_dir)
    if known is not None:
        return known
    node_id = secrets.token_bytes(16)
    fresh = data_dir / f"{_ID_FILE}.new"
    try:
        with open(fresh, "w") as file:
            file.write(node_id.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, data_dir / _ID_FILE)
        _sync_directory(data_dir)
    except OSError as error:
        raise _unusable(data_dir, error) from None
    return node_id


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse_id(text: str, data_dir: Path) -> bytes:
    try:
        node_id = bytes.fromhex(text.strip())
    except ValueError:
        node_id = b""
    if len(node_id) != 16:
        raise ConfigError(
            f"{data_dir / _ID_FILE} does not hold a node id (32 hex digits); "
            "restore it, or remove it to start as a new, empty node",
            key="data_dir",
        )
    return node_id


def _unusable(data_dir: Path, error: OSError) -> ConfigError:
    file = next((path for path in (data_dir, *data_dir.parents) if os.path.isfile(path)), None)
    why = error.strerror if file is None else f"{'it' if file == data_dir else file} is a file"
    return ConfigError(
        f"data directory {data_dir} cannot be used: {why}; set data_dir to a directory this user may write",
        key="data_dir",
    )
