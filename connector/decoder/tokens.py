"""Text to token ids and back, by a checkpoint's tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as _Tokenizer

from kvstore.core.errors import ConfigError


class Tokenizer:
    """A Hugging Face tokenizer. Raises ConfigError when ``directory`` has no usable tokenizer.json."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{directory} has no tokenizer.json")
        try:
            self._tokenizer = _Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise ConfigError(f"{path} is not a tokenizer: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Token ids, with the model's leading special tokens."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens; bytes that are no UTF-8 become replacement characters."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text
