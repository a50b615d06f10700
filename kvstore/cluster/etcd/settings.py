"""Where etcd is, and how to speak with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvstore.cluster.member import split_address
from kvstore.core.errors import ConfigError, InvalidArgument


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """``endpoints`` are "host:port", "http://host:port" or "https://host:port". Raises ConfigError.

    TLS is on with https or with any of the files; without ``ca_file`` the roots of gRPC are trusted. The files are read
    again when a connection fails and they have changed.
    """

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""  # the name in the servers' certificates, when it is not the endpoint's

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("no etcd endpoint is given; give at least one, such as etcd-0:2379")
        schemes = {scheme for scheme, _ in map(_split, self.endpoints)} - {""}
        if len(schemes) > 1 or (schemes == {"http"} and self._files):
            raise ConfigError("etcd endpoints are with TLS or without: use https:// for all, or http:// and no files")
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("a client certificate for etcd needs its key: set cert_file and key_file, or neither")
        if bool(self.user) != bool(self.password):
            raise ConfigError("etcd wants a user with a password: set both or neither")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The endpoints without scheme."""
        return tuple(address for _, address in map(_split, self.endpoints))

    @property
    def tls(self) -> bool:
        return bool(self._files) or any(endpoint.startswith("https://") for endpoint in self.endpoints)

    def stamps(self) -> tuple[object, ...]:
        """Differs when a file has been replaced."""
        return tuple((path, _stamp(path)) for path in self._files)

    @property
    def _files(self) -> list[Path]:
        return [path for path in (self.ca_file, self.cert_file, self.key_file) if path is not None]


def _split(endpoint: str) -> tuple[str, str]:
    scheme, found, rest = endpoint.partition("://")
    address = (rest if found else endpoint).rstrip("/")
    try:
        split_address(address)
    except InvalidArgument:
        raise ConfigError(f"etcd endpoint {endpoint!r} is not like etcd-0:2379 or https://etcd-0:2379") from None
    if found and scheme not in ("http", "https"):
        raise ConfigError(f"etcd endpoint {endpoint!r}: the scheme {scheme!r} is unknown; use http or https")
    return (scheme if found else ""), address


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
