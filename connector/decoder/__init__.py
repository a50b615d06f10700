"""A small Llama-architecture decoder in torch that keeps its KV blocks in kvstore.

    model = Llama.load(bundled_model())
    engine = Engine(model, client=kvstore.Client("auto"))
    for token in engine.stream(Request(tuple(Tokenizer(bundled_model()).encode("In the beginning")))):
        ...

Needs the extra ``decoder``. The package exists to show and to prove: its greedy output is the same to the token,
and its logits the same to the bit, whether a prefix was computed or loaded.
"""

from pathlib import Path

from kvstore.connector.decoder.config import ModelConfig, RopeScaling
from kvstore.connector.decoder.engine import Engine
from kvstore.connector.decoder.model import Llama
from kvstore.connector.decoder.requests import NewToken, Request, Result, Sampling
from kvstore.connector.decoder.tokens import Tokenizer


def bundled_model() -> Path:
    """Directory of the small model that comes with the package."""
    return Path(__file__).parent / "bundled"


__all__ = [
    "Engine",
    "Llama",
    "ModelConfig",
    "NewToken",
    "Request",
    "Result",
    "RopeScaling",
    "Sampling",
    "Tokenizer",
    "bundled_model",
]
