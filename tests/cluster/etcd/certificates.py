"""A certificate authority of the test, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Certificates:
    """Files of an authority, a server (127.0.0.1 and etcd.test) and a client."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._ca_key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        self.server_cert, self.server_key = folder / "server.pem", folder / "server-key.pem"
        self.client_cert, self.client_key = folder / "client.pem", folder / "client-key.pem"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl("req", "-x509", *key, "-subj", f"/CN={name}", "-days", "2", "-keyout", self._ca_key, "-out", self.ca)
        self.issue(self.server_cert, self.server_key, "subjectAltName=IP:127.0.0.1,DNS:etcd.test", "server")
        self.issue(self.client_cert, self.client_key, "extendedKeyUsage=clientAuth", "client")

    def issue(self, cert: Path, key: Path, extension: str, name: str) -> None:
        """A new certificate, put in place of the old one as a whole."""
        request, extensions, fresh = (self._folder / f"{name}.{ending}" for ending in ("csr", "ext", "new"))
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl("req", *curve, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extensions.write_text(extension + "\n")
        signer = ["-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial", "-days", "2", "-extfile", extensions]
        _openssl("x509", "-req", "-in", request, *signer, "-out", fresh)
        fresh.replace(cert)

    def etcd_options(self) -> list[str]:
        """Of a server that wants a client certificate."""
        files = ["--cert-file", str(self.server_cert), "--key-file", str(self.server_key)]
        return [*files, "--trusted-ca-file", str(self.ca), "--client-cert-auth"]


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
