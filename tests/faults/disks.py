"""File systems to break: ext4 on a loop device, with power loss, errors and no space. Needs root; always cleans up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32)
_NO_LOG_FLUSH = 2  # what a power loss does: the journal in memory is gone


class LoopDisk:
    """An ext4 file system in a file, mounted at ``mount``."""

    def __init__(self, place: Path, megabytes: int) -> None:
        self.image, self.mount_point = place / "disk.img", place / "mnt"
        self.mount_point.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", str(self.image))

    @property
    def directory(self) -> Path:
        """Where a tier goes."""
        return self.mount_point / "tier"

    def mount(self, options: str = "loop") -> None:
        _run("mount", "-o", options, str(self.image), str(self.mount_point))

    def unmount(self, patience: float = 20.0) -> None:
        """Waits for the last user of the file system: a killed process takes a moment."""
        deadline = time.monotonic() + patience
        while True:
            done = subprocess.run(["umount", str(self.mount_point)], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"cannot unmount: {done.stderr.strip()}")
            time.sleep(0.05)

    def lose_power(self) -> None:
        """From here on nothing reaches the disk, and every access fails."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def device(self) -> str:
        """Name of the loop device, as below /sys/fs/ext4."""
        for line in Path("/proc/mounts").read_text().splitlines():
            source, target, *_ = line.split()
            if target == str(self.mount_point):
                return source.rsplit("/", 1)[-1]
        raise AssertionError(f"{self.mount_point} is not mounted")

    def turn_read_only(self) -> None:
        """An error inside ext4, with errors=remount-ro."""
        (Path("/sys/fs/ext4") / self.device() / "trigger_fs_error").write_text("1")

    def free_bytes(self) -> int:
        found = os.statvfs(self.mount_point)
        return found.f_bavail * found.f_frsize


@contextmanager
def loop_disk(place: Path, megabytes: int = 64, options: str = "loop") -> Iterator[LoopDisk]:
    """A mounted disk; unmounted at the end whatever happened."""
    disk = LoopDisk(place, megabytes)
    disk.mount(options)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk.mount_point)], capture_output=True, check=False)
        with contextlib.suppress(OSError):
            disk.image.unlink()


def drop_caches() -> None:
    """Cold pages: the next look at a mapped file goes to the disk."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()} (the suite needs root and loop devices)")
