"""Keys given on the command line: as hex, or as token ids to compute them from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvstore.core.errors import BadKey, InvalidArgument
from kvstore.core.keys import KEY_BYTES, Keys, chain_keys
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
    return _from_json(path, text) if text.lstrip().startswith("[") else _from_words(path, text)


def _from_json(path: Path, text: str) -> list[int]:
    try:
        values = json.loads(text)
    except ValueError as error:  # says line and column
        raise _no_tokens(path, str(error)) from None
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no_tokens(path, f"item {position} of the list is {_short(json.dumps(value))}")
    return list(values)


def _from_words(path: Path, text: str) -> list[int]:
    found: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.replace(",", " ").split():
            try:
                found.append(int(word))
            except ValueError:
                raise _no_tokens(
                    path, f"{_short(repr(word))} in line {number}, token {len(found)} of the file"
                ) from None
    return found


def _no_tokens(path: Path, why: str) -> InvalidArgument:
    return InvalidArgument(f"{path} does not hold token ids: {why}", field="tokens-file")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _from_hex(text: str) -> Keys:
    keys: list[bytes] = []
    for nth, word in enumerate(text.replace(",", " ").split()):
        try:
            keys.append(bytes.fromhex(word))
        except ValueError:
            keys.append(b"")
        if len(keys[-1]) != KEY_BYTES:
            raise BadKey(f"--keys: key {nth} is {_short(repr(word))}, a key is {2 * KEY_BYTES} hex digits", index=nth)
    return Keys.of(keys)
