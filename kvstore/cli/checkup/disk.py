"""Whether the directory of the NVMe tier is fit for it."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

from kvstore.node.config import NodeConfig
from kvstore.node.status.findings import Finding
from kvstore.node.units import show_size

_TRIED = 64 << 20  # bytes written and read
_PIECE = 4 << 20
_SLOW = 300e6  # bytes a second below which recomputing is often as fast


def disk(config: NodeConfig) -> Iterator[Finding]:
    """O_DIRECT, room and speed."""
    folder = config.nvme_dir
    if folder is None:
        yield Finding("note", "there is no NVMe tier", "set nvme_dir to keep more, and over restarts of the machine")
        return
    here = _nearest(folder)
    if not os.access(here, os.W_OK):
        yield Finding("error", f"nvme_dir {folder}: no permission to write in {here}", "chown it to the node's user")
        return
    stat = os.statvfs(here)
    free, wanted = stat.f_bavail * stat.f_frsize, config.nvme_capacity
    held = sum(one.stat().st_blocks * 512 for one in folder.rglob("*") if one.is_file()) if folder.exists() else 0
    if wanted and wanted > free + held:
        yield Finding(
            "error", f"nvme_capacity is {show_size(wanted)}, but {here} has {show_size(free + held)} for it",
            "set a smaller nvme_capacity, or make room",
        )  # fmt: skip
    yield from _tried(here)


def _nearest(folder: Path) -> Path:
    """The directory itself, or the one that it would be made in."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _tried(folder: Path) -> Iterator[Finding]:
    path = folder / f".kvstore-doctor-{os.getpid()}"
    try:
        written, read = _speeds(path)
    except OSError as error:
        if error.errno == 22:  # EINVAL
            yield Finding(
                "error", f"the file system of {folder} knows no O_DIRECT",
                "use ext4 or xfs on a local disk; overlay file systems of containers do not do",
            )  # fmt: skip
        else:
            yield Finding("error", f"cannot write in {folder}: {error.strerror}", "mend the disk, or make room")
        return
    finally:
        path.unlink(missing_ok=True)
    text = f"{folder} writes {written / 1e9:.2f} and reads {read / 1e9:.2f} GB/s past the page cache"
    if min(written, read) < _SLOW:
        yield Finding("warning", text, "that is no NVMe drive: loading may be slower than computing again")
    else:
        yield Finding("ok", text)


def _speeds(path: Path) -> tuple[float, float]:
    """Bytes a second, written and synced, and read."""
    page = mmap.mmap(-1, _PIECE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        began = time.perf_counter()
        for at in range(0, _TRIED, _PIECE):
            os.pwrite(descriptor, page, at)
        os.fdatasync(descriptor)
        middle = time.perf_counter()
        for at in range(0, _TRIED, _PIECE):
            os.preadv(descriptor, [page], at)
        return _TRIED / (middle - began), _TRIED / (time.perf_counter() - middle)
    finally:
        os.close(descriptor)
        page.close()
