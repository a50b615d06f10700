"""Asks the node of this host or container how it is; for health checks that run a command.

    python -m kvstore.node.probe [--address HOST:PORT] [livez | startupz | readyz]

Exit status 0: yes; 1: no, or no answer; 2: wrong call or configuration. Without an address it is that of the node's
settings, as the environment and KVSTORE_CONFIG say. Imports little: it runs every few seconds.
"""

from __future__ import annotations

import argparse
import http.client
import sys

_QUESTIONS = ("livez", "startupz", "readyz")
_SECONDS = 3.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a node that listens everywhere is reached from within


def ask(host: str, port: int, question: str) -> tuple[bool, str]:
    """Whether the answer is yes, and what to tell people."""
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", f"/{question}")
        reply = connection.getresponse()
        return reply.status == 200, reply.read(1000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"no answer from {host} port {port}: {error}"
    finally:
        connection.close()


def address_of(text: str) -> tuple[str, int]:
    """Host and port; without a text, of the node's settings. Raises ConfigError or ValueError."""
    if text:
        host, _, port = text.rpartition(":")
        return host.strip("[]"), int(port)
    from kvstore.core.errors import ConfigError
    from kvstore.node.config import load

    address = load().http_address
    if address is None:
        raise ConfigError("http_address is off: there is nobody to ask", key="http_address")
    return address.host, address.port


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kvstore.node.probe", description="Asks a node how it is.")
    parser.add_argument("--address", default="", metavar="HOST:PORT")
    parser.add_argument("question", nargs="?", default="readyz", choices=_QUESTIONS)
    options = parser.parse_args(arguments)
    try:
        host, port = address_of(options.address)
    except Exception as error:  # the one line of a health check's log
        print(f"error: {error}", file=sys.stderr)
        return 2
    good, answer = ask(_LOOPBACK.get(host, host), port, options.question)
    print(answer)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
