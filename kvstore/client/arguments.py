"""Checks of what callers pass: wrong types are InvalidArgument that says which argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kvstore.core.errors import InvalidArgument


def whole(name: str, value: object, least: int = 0) -> int:
    """A whole number (numpy's too, no bool). Raises InvalidArgument."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidArgument(f"{name} must be a whole number of {least} or more, not {value!r}", field=name)
    return number


def fitting(name: str, value: object, bits: int = 64) -> int:
    """A whole number of 0 or more that the protocol has room for. Raises InvalidArgument."""
    number = whole(name, value)
    if number >> bits:
        raise InvalidArgument(f"{name} must be below 2**{bits}, not {number}", field=name)
    return number


def span(value: object) -> tuple[int, int] | None:
    """An ``(offset, length)`` or None. Raises InvalidArgument."""
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InvalidArgument(f"range must be (offset, length) in bytes, not {value!r}", field="range")
    return whole("range offset", value[0]), whole("range length", value[1])


def chosen_parts(parts: object, names: Mapping[str, int]) -> tuple[int, ...]:
    """Indexes of parts given by name or index; none for None (all). Raises InvalidArgument."""
    if parts is None:
        return ()
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise InvalidArgument(
            f"parts must be a sequence of names or numbers, or None for all, not {parts!r}", field="parts"
        )
    given = list(parts)
    chosen = tuple(names.get(part, -1) if isinstance(part, str) else whole("parts", part, least=-1) for part in given)
    for part, index in zip(given, chosen, strict=True):
        if not 0 <= index < len(names):
            raise InvalidArgument(
                f"the namespace has no part {part!r}; its parts are {', '.join(names)}", field="parts"
            )
    if not chosen:
        raise InvalidArgument("parts is empty: name at least one part, or give None for all", field="parts")
    if len(set(chosen)) != len(chosen):
        raise InvalidArgument(f"parts {given} name one part twice", field="parts")
    return chosen


def hints_of(importance: Sequence[int] | None, blocks: int) -> bytes:
    """One u16 a block, nothing for None. Raises InvalidArgument."""
    if importance is None:
        return b""
    try:
        hints = np.asarray(importance)
        known = hints.shape == (blocks,) and (not blocks or hints.dtype.kind in "iu")
    except (TypeError, ValueError):
        known = False
    if not known or (blocks and not (hints.min() >= 0 and hints.max() <= 65_535)):
        raise InvalidArgument(f"importance must be {blocks} numbers of 0 to 65535, one a block", field="importance")
    return hints.astype("<u2").tobytes()
