"""Kinds of settings: how values are read from text and shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore.node.units import (
    parse_address,
    parse_discovery,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
)

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a setting are read (raises ValueError) and shown."""

    name: str
    parse: Callable[[object], Any]
    show: Callable[[Any], str] = str


def _flag(value: object) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if str(value).lower() not in known:
        raise ValueError(f"{value!r} is neither true nor false")
    return known[str(value).lower()]


def _ratio(value: object) -> float:
    number = float(str(value))
    if not 0 < number <= 1:
        raise ValueError(f"{value!r} is not a ratio above 0, at most 1")
    return number


def _number(value: object) -> float:
    number = float(str(value))
    if not 0 <= number < float("inf"):
        raise ValueError(f"{value!r} is not a number of 0 or more")
    return number


def _count(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value).replace("_", "")) or int(str(value)) < 1:
        raise ValueError(f"{value!r} is not a whole number of at least 1")
    return int(str(value))


def _mode(value: object) -> int:
    text = f"{value:o}" if isinstance(value, int) else str(value)
    if not re.fullmatch(r"(0o)?[0-7]{3,4}", text):
        raise ValueError(f'{value!r} is not an octal mode such as "0600"')
    return int(text.removeprefix("0o"), 8)


def _path(value: object) -> Path:
    if not str(value):
        raise ValueError("the path is empty")
    return Path(os.path.abspath(os.path.expanduser(str(value))))


def _or_auto(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if str(value).lower() == AUTO else parse(value)


def _or_off(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if str(value).lower() == "off" else parse(value)


def _shown_or(word: str, show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: word if value is None else show(value)


def _socket(value: object) -> Path | None:
    return None if str(value).lower() == "off" else _path(value)


def _text(value: object) -> str:
    text = str(value)
    if not (0 < len(text) < 256 and text.isprintable()):
        raise ValueError(f"{value!r} is not text of 1 to 255 characters on one line")
    return text


def one_of(*choices: str) -> Kind:
    def parse(value: object) -> str:
        if str(value) not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(choices)}")
        return str(value)

    return Kind(" or ".join(choices), parse)


def some_of(*choices: str) -> Kind:
    """Several of these, with commas or as a list; kept in the order of ``choices``."""

    def parse(value: object) -> tuple[str, ...]:
        given = value if isinstance(value, (list, tuple)) else str(value).split(",")
        names = {str(name).strip() for name in given} - {""}
        if unknown := sorted(names.difference(choices)):
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(choices)}")
        if not names:
            raise ValueError(f"it names none of {', '.join(choices)}")
        return tuple(name for name in choices if name in names)

    return Kind("some of " + ", ".join(choices), parse, ",".join)


def _nodes(value: object) -> tuple[int, ...]:
    """NUMA nodes; none for "off"."""
    if str(value).lower() == "off":
        return ()
    given = value if isinstance(value, (list, tuple)) else str(value).split(",")
    if not all(re.fullmatch(r"\s*\d{1,3}\s*", str(one)) for one in given):
        raise ValueError(f"{value!r} is neither auto, off, nor numbers of NUMA nodes with commas")
    return tuple(sorted({int(str(one)) for one in given}))


def _shown_nodes(value: tuple[int, ...]) -> str:
    return ",".join(map(str, value)) or "off"


SIZE = Kind("size", parse_size, show_size)
SIZE_OR_AUTO = Kind("size or auto", _or_auto(parse_size), _shown_or(AUTO, show_size))
COUNT = Kind("number", _count)
COUNT_OR_AUTO = Kind("number or auto", _or_auto(_count), _shown_or(AUTO, str))
DURATION = Kind("duration", parse_duration, show_duration)
DURATION_OR_OFF = Kind(
    "duration or off",
    _or_off(parse_duration),
    _shown_or("off", show_duration),
)
ADDRESS = Kind("host:port or off", parse_address, _shown_or("off", str))
PATH = Kind("path", _path)
PATH_OR_AUTO = Kind("path or auto", _or_auto(_path), _shown_or(AUTO, str))
PATH_OR_OFF = Kind("path or off", _socket, _shown_or("off", str))
NUMBER = Kind("number of 0 or more", _number, lambda value: f"{value:g}")
SOCKET = Kind("path or off", _socket, _shown_or("off", str))
MODE = Kind("octal mode", _mode, lambda value: f"{value:04o}")
RATIO = Kind("ratio", _ratio, lambda value: f"{value:g}")
TEXT_OR_AUTO = Kind("text or auto", _or_auto(_text), _shown_or(AUTO, str))
TEXT_OR_OFF = Kind("text or off", _or_off(_text), _shown_or("off", str))
DISCOVERY = Kind("URL or off", parse_discovery, _shown_or("off", str))
NUMA_NODES = Kind("numbers, auto or off", _or_auto(_nodes), _shown_or(AUTO, _shown_nodes))
FLAG = Kind("true or false", _flag, lambda value: "true" if value else "false")
