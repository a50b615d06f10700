"""Keys given on the command line: as hex, or as token ids to compute them from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvstore.core.errors import BadKey, InvalidArgument
from kvstore.core.keys import Keys, chain_keys
from kvstore.core.namespace import parse_canonical
from kvstore.v1.control_pb2 import NamespaceInfo

TOKENS_HELP = "File of token ids (JSON list, or separated by blanks or commas); - reads standard input."
KEYS_HELP = "Keys of the chain from block 0, as hex, separated by commas."


def chain(info: NamespaceInfo, keys: str | None, tokens_file: Path | None) -> Keys:
    """The chain meant. Raises InvalidArgument unless exactly one of the two is given."""
    if (keys is None) == (tokens_file is None):
        raise InvalidArgument("give either --keys or --tokens-file")
    if keys is not None:
        return _from_hex(keys)
    assert tokens_file is not None
    tokens = read_tokens(tokens_file)
    spec = parse_canonical(info.canonical)
    found = Keys(chain_keys(info.root, tokens, spec.block_tokens))
    if not found:
        raise InvalidArgument(f"{len(tokens)} tokens fill no block of {spec.block_tokens}", field="tokens")
    return found


def read_tokens(path: Path) -> list[int]:
    """Token ids in a text file."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"cannot read token ids from {path}: {error}", field="tokens-file") from None
    try:
        value = json.loads(text) if text.lstrip().startswith("[") else text.replace(",", " ").split()
        return [int(token) for token in value]
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{path} does not hold token ids: {error}", field="tokens-file") from None


def _from_hex(text: str) -> Keys:
    try:
        return Keys.of([bytes.fromhex(key) for key in text.replace(",", " ").split()])
    except ValueError as error:
        raise BadKey(f"--keys: {error}") from None
