"""vLLM's CPU attention under another name, for the test of the namespace's backend field."""

from __future__ import annotations

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend


class OtherBackend(CPUAttentionBackend):  # type: ignore[misc]
    @staticmethod
    def get_name() -> str:
        return "CUSTOM"
