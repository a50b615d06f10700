"""Changes of vLLM itself, inside an engine's process and before it starts: what one machine with CPUs cannot have in
two ways otherwise. The connector is not touched: it reads the changed vLLM as it reads any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def version() -> None:
    """A newer minor version."""
    import vllm

    vllm.__version__ = "0.99.0"


def isa() -> None:
    """Kernels of another instruction set, with keys laid out for them."""
    from vllm.v1.attention.backends import cpu_attn

    found: Callable[..., str] = cpu_attn._get_attn_isa
    cpu_attn._get_attn_isa = lambda *args, **kwargs: "vec" if found(*args, **kwargs) == "amx" else "vec16"


def backend() -> None:
    """Another attention backend under another name, registered as vLLM asks for it."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_ATTN, "tests.vllm.other_backend.OtherBackend")


def layout() -> None:
    """Blocks outermost: all layers of a block side by side."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.kv_cache_layout import KVCacheLayout

    CPUAttentionBackend.supported_kv_cache_layouts = classmethod(lambda cls: (KVCacheLayout.BLHNC,))


def kv_scales() -> None:
    """Scales of a checkpoint that brings its own."""
    from vllm.model_executor.layers.attention.attention import Attention

    load: Callable[..., Any] = Attention.process_weights_after_loading

    def scaled(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        self._k_scale_float = 0.5

    Attention.process_weights_after_loading = scaled


PATCHES: dict[str, Callable[[], None]] = {
    "version": version,
    "isa": isa,
    "backend": backend,
    "layout": layout,
    "kv_scales": kv_scales,
}
