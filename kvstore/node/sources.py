"""Where settings are read from: a TOML file and the environment. What they mean is not known here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvstore.core.errors import ConfigError

ENV_PREFIX = "KVSTORE_"
_OTHER_VARIABLES = frozenset({"KVSTORE_CONFIG", "KVSTORE_TARGET", "KVSTORE_DEBUG"})  # read elsewhere: config file, CLI
# Kubernetes adds these for a Service named kvstore; they are no settings of ours.
_SERVICE_LINKS = re.compile(r"^KVSTORE_(.*_)?(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP).*)?)$")


def read_toml(path: Path) -> dict[str, object]:
    """Raises ConfigError, one line."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef,import-not-found,unused-ignore]
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: it is not UTF-8 (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def read_environment(environ: Mapping[str, str], known: Sequence[str]) -> dict[str, object]:
    """Settings in the environment. A misspelt one is kept, for the check to name; foreign ones are not ours."""
    found: dict[str, object] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX) or name in _OTHER_VARIABLES or _SERVICE_LINKS.match(name):
            continue
        key = name[len(ENV_PREFIX) :].lower()
        if key in known or difflib.get_close_matches(key, known, 1, 0.75):
            found[key] = value
    return found
