"""Identity of weights by content: a digest over the files, cached per file (path, size, time, inode)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator

import xxhash

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
IGNORED = ("optimizer", "scheduler", "training_args", "rng_state")
_BLOB = re.compile(r"^[0-9a-f]{64}$")  # a hub's cache names large files by their SHA-256
_READ = 16 << 20


class NoWeights(Exception):
    """No files to take a digest of."""


def digest_dir(path: str, cache_dir: str) -> str:
    """Digest of all weight files under ``path`` (a directory or one file): names, sizes, content.

    Raises NoWeights or OSError. A file is read once and its digest kept in ``cache_dir``; it is read again when
    its size, modification time or inode changes.
    """
    files = sorted(_files(path))
    if not files:
        raise NoWeights(f"{path} holds no weight files ({', '.join(WEIGHTS)})")
    whole = hashlib.blake2b(digest_size=16)
    for name, file in files:
        whole.update(json.dumps([name, os.stat(file).st_size, _file_digest(file, cache_dir)]).encode())
    return whole.hexdigest()


def _files(path: str) -> Iterator[tuple[str, str]]:
    if os.path.isfile(path):
        yield os.path.basename(path), path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in names:
            if name.endswith(WEIGHTS) and not name.startswith(IGNORED):
                file = os.path.join(folder, name)
                yield os.path.relpath(file, path), file


def _file_digest(file: str, cache_dir: str) -> str:
    real = os.path.realpath(file)
    if _BLOB.match(os.path.basename(real)) and os.path.basename(os.path.dirname(real)) == "blobs":
        return "sha256:" + os.path.basename(real)
    stat = os.stat(real)
    stamp = [real, stat.st_size, stat.st_mtime_ns, stat.st_ino]
    entry = os.path.join(cache_dir, "weights", hashlib.blake2b(real.encode(), digest_size=16).hexdigest() + ".json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        with open(entry, encoding="utf-8") as known:
            saved = json.load(known)
        if saved["file"] == stamp:
            return str(saved["digest"])
    value = _read(real)
    with contextlib.suppress(OSError):
        _remember(entry, {"file": stamp, "digest": value})
    return value


def _read(file: str) -> str:
    state, buffer = xxhash.xxh3_128(), bytearray(_READ)
    view = memoryview(buffer)
    with open(file, "rb", buffering=0) as data:
        while count := data.readinto(buffer):
            state.update(view[:count])
    return "xxh3:" + state.hexdigest()


def _remember(entry: str, value: dict[str, object]) -> None:
    os.makedirs(os.path.dirname(entry), exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(entry))
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        json.dump(value, out)
    os.replace(temporary, entry)
