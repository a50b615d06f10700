"""kvstore size: how much memory the KV cache of a model takes, from its config.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvstore.core.errors import InvalidArgument
from kvstore.node.units import show_size

app = typer.Typer(pretty_exceptions_enable=False)
_ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


@dataclass(frozen=True)
class KVShape:
    """What one token leaves in the cache: ``full`` layers keep all tokens, ``window`` layers the last ones.

    ``values``: numbers a token and layer (keys and values of all KV heads, or the one latent of MLA).
    """

    full: int
    window: int
    window_tokens: int
    values: int
    kind: str  # "attention" or "mla"
    dtype: str

    def token_bytes(self, element: int) -> int:
        """Bytes of one token in all layers, which is what a store keeps of each token."""
        return (self.full + self.window) * self.values * element

    def context_bytes(self, tokens: int, element: int) -> int:
        """Bytes of a context in the engine: window layers keep their window only."""
        kept = min(tokens, self.window_tokens) if self.window else 0
        return (self.full * tokens + self.window * kept) * self.values * element


def shape_of(config: dict[str, Any]) -> KVShape:
    """From a config.json as Hugging Face models have it. Raises InvalidArgument naming what is missing."""
    text = _text(config)
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers")
    window, tokens = _window_layers(text, layers)
    kind, values = _values(text)
    dtype = str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return KVShape(layers - window, window, tokens, values, kind, dtype)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """The part that describes the decoder."""
    text = config.get("text_config") or config.get("llm_config") or config
    if not isinstance(text, dict):
        raise InvalidArgument(f"text_config in the config is {type(text).__name__}, not a table", field="text_config")
    return text


def _check_ranks(config: dict[str, Any], shape: KVShape, tp: int) -> None:
    """Engines give each rank whole KV heads, or one of them to several ranks."""
    heads = 1 if shape.kind == "mla" else _kv_heads(_text(config))
    if shape.kind != "mla" and heads % tp and tp % heads:
        raise InvalidArgument(f"{heads} KV heads cannot be divided over --tp {tp} ranks", field="tp")


def _values(text: dict[str, Any]) -> tuple[str, int]:
    if text.get("kv_lora_rank"):
        return "mla", _whole(text, "kv_lora_rank") + _whole(text, "qk_rope_head_dim")
    heads = _number(text, "num_attention_heads", "n_head")
    head = _whole(text, "head_dim") or _number(text, "hidden_size", "n_embd") // heads
    return "attention", _kv_heads(text) * (head + _whole(text, "v_head_dim", head))


def _kv_heads(text: dict[str, Any]) -> int:
    heads = _number(text, "num_attention_heads", "n_head")
    return _whole(text, "num_key_value_heads") or _whole(text, "multi_query_group_num") or heads


def _window_layers(text: dict[str, Any], layers: int) -> tuple[int, int]:
    tokens = _whole(text, "sliding_window")
    if not tokens or text.get("use_sliding_window") is False:
        return 0, 0
    types = text.get("layer_types")
    if types is not None and not isinstance(types, list):
        raise InvalidArgument(f"layer_types in the config is {types!r}, not a list", field="layer_types")
    if types:
        return sum("sliding" in str(kind) for kind in types), tokens
    pattern = _whole(text, "sliding_window_pattern")
    if pattern:
        return layers - layers // pattern, tokens
    return (layers // 2 if "gemma2" in str(text.get("model_type")) else layers), tokens


def _number(text: dict[str, Any], *names: str) -> int:
    for name in names:
        if text.get(name):
            return _whole(text, name)
    raise InvalidArgument(
        f"the config has none of {', '.join(names)}; give the config.json of a decoder", field=names[0]
    )


def _whole(text: dict[str, Any], name: str, default: int = 0) -> int:
    """A whole number of the config, ``default`` when it has none (or null). Raises InvalidArgument."""
    value = text.get(name) or default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} in the config is {value!r}, not a whole number of 0 or more", field=name)
    return value


def element_bytes(shape: KVShape, kv_dtype: str) -> int:
    """Bytes of one number in the cache. Raises InvalidArgument."""
    name = shape.dtype if kv_dtype == "auto" else kv_dtype
    if name.removeprefix("torch.") not in _ELEMENT:
        raise InvalidArgument(f"kv dtype must be auto or one of {', '.join(_ELEMENT)}, not {name!r}", field="kv-dtype")
    return _ELEMENT[name.removeprefix("torch.")]


def read_config(path: Path) -> dict[str, Any]:
    """A config.json, given itself or by its directory. Raises InvalidArgument."""
    file = path / "config.json" if path.is_dir() else path
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read a model's config from {file}: {error}", field="model") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{file} is not the config of a model", field="model")
    return value


@app.command()
def size(
    model: Annotated[Path, typer.Option(help="config.json of the model, or its directory.")],
    context: Annotated[int, typer.Option(min=1, help="Tokens of a context.")] = 8192,
    contexts: Annotated[int, typer.Option(min=1, help="How many different contexts to keep.")] = 1,
    kv_dtype: Annotated[str, typer.Option(help="dtype of the KV cache; auto is that of the model.")] = "auto",
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a block (vLLM's --block-size).")] = 16,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how much memory the KV cache of a model takes.

    bytes = layers x tokens x values x bytes a value; values = KV heads x (head dim of K + head dim of V), or for MLA
    the one latent that all heads and TP ranks share.
    """
    config = read_config(model)
    shape = shape_of(config)
    _check_ranks(config, shape, tp)
    element = element_bytes(shape, kv_dtype)
    token = shape.token_bytes(element)
    stored = token * (context // block_tokens * block_tokens) * contexts
    result = {
        **asdict(shape),
        "element_bytes": element,
        "token_bytes": token,
        "block_bytes": token * block_tokens,
        "part_bytes": token * block_tokens // (1 if shape.kind == "mla" else tp),
        "engine_context_bytes": shape.context_bytes(context, element),
        "store_bytes": stored,
        "capacity_bytes": int(stored * 1.07),
    }
    if as_json:
        typer.echo(json.dumps(result))
        return
    _print(result, context, contexts, block_tokens, tp)


def _print(result: dict[str, Any], context: int, contexts: int, block_tokens: int, tp: int) -> None:
    layers = f"{result['full']} full" + (
        f" + {result['window']} window ({result['window_tokens']} tokens)" if result["window"] else ""
    )
    rows = [
        ("layers", layers),
        ("values a token and layer", f"{result['values']} ({result['kind']}), {result['element_bytes']} bytes each"),
        ("one token", show_size(result["token_bytes"])),
        (f"one block of {block_tokens} tokens", show_size(result["block_bytes"])),
        (f"a rank's part of it (TP {tp})", show_size(result["part_bytes"])),
        (f"a context of {context} tokens in the engine", show_size(result["engine_context_bytes"])),
        (f"{contexts} x {context} tokens in the store", show_size(result["store_bytes"])),
        ("capacity to give the node (tables, free slots)", show_size(result["capacity_bytes"])),
    ]
    for name, value in rows:
        typer.echo(f"{name:<48}{value}")
