"""Listening sockets of the data path, with errors that name the setting to change."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from kvstore.core.errors import ConfigError, KVStoreError, Unavailable
from kvstore.node.units import Address

_BACKLOG = 256


def listen_tcp(address: Address, key: str) -> socket.socket:
    """A listening TCP socket. Raises Unavailable (port in use) or ConfigError; ``key`` is the setting."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise port_error(address, key, error) from None
    return sock


def port_error(address: Address, key: str, error: OSError) -> KVStoreError:
    """What a failed bind means to the person who configured it."""
    if error.errno == errno.EADDRINUSE:
        return Unavailable(
            f"port {address.port} on {address.host} is in use; stop what listens there, or set {key} to another port",
            key=key,
        )
    if error.errno == errno.EACCES:
        return Unavailable(f"no permission to listen on {address}; set {key} to a port from 1024 up", key=key)
    return ConfigError(f"cannot listen on {key} = {address}: {error.strerror or error}", key=key)


def listen_unix(path: Path, mode: int) -> socket.socket:
    """A listening unix socket. A stale one is replaced; a living node's is not: Unavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_way(path)
    except OSError as error:
        raise _unusable(path, error) from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)  # nobody else connects between bind and chmod
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(before)
        os.chmod(path, mode)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise _unusable(path, error) from None
    return sock


def remove_unix(path: Path, inode: int) -> None:
    """Removes our socket; one that another node has put in its place stays."""
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino == inode:
            os.unlink(path)


def _make_way(path: Path) -> None:
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(
            f"socket {path} exists and is no socket; remove it, or set socket to another path", key="socket"
        )
    if _answers(path):
        raise Unavailable(
            f"socket {path} is in use by a living node; stop it, or set socket to another path", key="socket"
        )
    os.unlink(path)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # full backlog, no permission: somebody is there
    return True


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"socket {path} cannot be made: {error.strerror or error}; set socket to a path this user may write",
        key="socket",
    )
