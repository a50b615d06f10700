"""What depends on the engine around us and needs no vLLM to be told: devices, versions, pages given out."""

from __future__ import annotations

import logging
from typing import Any

from .pages import HostPages, UnsupportedPages

LOG = logging.getLogger("vllm.kvstore")
OLDEST = (0, 31)


def make_pages(device: str, caches: dict[str, Any], layers: dict[int, list[str]], num_blocks: int) -> Any:
    if device == "cpu":
        return HostPages(caches, layers, num_blocks)
    if device == "cuda":
        from .device_pages import DevicePages

        return DevicePages(caches, layers, num_blocks)
    raise UnsupportedPages(f"KV caches on device {device} are not supported")


def ask_for_amx() -> None:
    """vLLM's CPU attention uses AMX tiles, but only torch's large matrix products ask the kernel for them. Where the
    first step of an engine decodes one token behind a loaded prompt, the worker would die of an illegal instruction."""
    try:
        import torch

        torch.cpu._init_amx()
    except Exception as error:
        LOG.debug("kvstore: no AMX: %s", error)


def fresh_pages(output: Any) -> set[int]:
    """Pages given out in this step, of all groups."""
    found = {page for new in output.scheduled_new_reqs for table in new.block_ids for page in table}
    for tables in output.scheduled_cached_reqs.new_block_ids:
        found.update(page for table in tables or () for page in table)
    return found


def version_refusals(version: str) -> tuple[str, ...]:
    """vLLM before 0.31 hashes blocks differently (before 0.29 at random in each process)."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and (0, 1) < numbers < OLDEST:
        return (f"vLLM {version} is too old, its block hashes are not the same in every process; use 0.31 or newer",)
    return ()
