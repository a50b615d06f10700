"""etcd's JSON gateway: a second client that shares nothing with ours, to change and to check what is stored."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.cluster.etcd.certificates import Certificates


@dataclass(frozen=True)
class Stored:
    """A key as etcd has it. ``version`` counts its writes since it was made."""

    value: bytes
    version: int
    revision: int
    lease: int


class Gateway:
    def __init__(
        self, address: str, certificates: Certificates | None = None, token: str = "", timeout: float = 5.0
    ) -> None:
        self._url = f"{'https' if certificates else 'http'}://{address}/v3"
        self._token = token
        self._timeout = timeout
        self._context: ssl.SSLContext | None = None
        if certificates is not None:
            self._context = ssl.create_default_context(cafile=str(certificates.ca))
            self._context.load_cert_chain(certificates.client_cert, certificates.client_key)

    def call(self, path: str, **body: object) -> Any:
        request = urllib.request.Request(f"{self._url}/{path}", json.dumps(body).encode())
        if self._token:
            request.add_header("Authorization", self._token)
        with urllib.request.urlopen(request, timeout=self._timeout, context=self._context) as reply:
            return json.load(reply)

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """The revision of the write."""
        return int(self.call("kv/put", key=_text(key.encode()), value=_text(value), lease=lease)["header"]["revision"])

    def delete(self, key: str) -> None:
        self.call("kv/deleterange", key=_text(key.encode()))

    def get(self, key: str) -> Stored | None:
        found = self.call("kv/range", key=_text(key.encode())).get("kvs")
        return _stored(found[0]) if found else None

    def keys(self, prefix: str) -> list[str]:
        """In order."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.call("kv/range", key=_text(prefix.encode()), range_end=_text(end.encode())).get("kvs", [])
        return [base64.b64decode(one["key"]).decode() for one in found]

    def compact(self, revision: int) -> None:
        self.call("kv/compaction", revision=revision, physical=True)

    def grant(self, ttl: int) -> int:
        return int(self.call("lease/grant", TTL=ttl)["ID"])

    def revoke(self, lease: int) -> None:
        self.call("lease/revoke", ID=lease)

    def time_to_live(self, lease: int) -> int:
        """Seconds; -1: there is no such lease."""
        return int(self.call("lease/timetolive", ID=lease).get("TTL", 0))

    def leader(self) -> str:
        """Empty while there is none."""
        return str(self.call("maintenance/status").get("leader", ""))

    def member(self) -> str:
        return str(self.call("maintenance/status")["header"]["member_id"])

    def enable_users(self, root_password: str, user: str, password: str, prefix: str) -> None:
        """From now on etcd wants to know who asks; ``user`` may do all below ``prefix``, and nothing else."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.call("auth/user/add", name="root", password=root_password)
        self.call("auth/role/add", name="root")
        self.call("auth/user/grant", user="root", role="root")
        self.call("auth/user/add", name=user, password=password)
        self.call("auth/role/add", name="nodes")
        allowed = {"permType": "READWRITE", "key": _text(prefix.encode()), "range_end": _text(end.encode())}
        self.call("auth/role/grant", name="nodes", perm=allowed)
        self.call("auth/user/grant", user=user, role="nodes")
        self.call("auth/enable")

    def as_user(self, address: str, user: str, password: str) -> Gateway:
        return Gateway(address, token=self.call("auth/authenticate", name=user, password=password)["token"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _stored(found: dict[str, str]) -> Stored:
    value = base64.b64decode(found.get("value", ""))
    return Stored(value, int(found["version"]), int(found["mod_revision"]), int(found.get("lease", 0)))
