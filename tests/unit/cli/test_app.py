"""The command line: one line for whatever goes wrong, JSON when it was asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kvstore.cli import NAMES, app, main
from kvstore.cli.tokens import _from_hex, read_tokens
from kvstore.core.errors import BadKey, InvalidArgument


def test_version_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvstore ")
    assert main(["bogus"]) == 2
    assert "No such command" in capsys.readouterr().err
    assert set(app._COMMANDS) == set(NAMES)


@pytest.mark.parametrize("timeout", ["nan", "-1", "0"])
def test_a_timeout_that_is_no_time_is_refused(capsys: pytest.CaptureFixture[str], timeout: str) -> None:
    assert main(["stat", "--timeout", timeout, "--json"]) == 2
    said = capsys.readouterr()
    assert "--timeout must be" in json.loads(said.out)["error"]["message"]
    assert said.err.count("\n") == 1


def test_what_nobody_foresaw_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("kvstore.cli.size.shape_of", lambda config: 1 / 0)
    (tmp_path / "config.json").write_text("{}")
    assert main(["size", "--model", str(tmp_path)]) == 1
    assert "Traceback" not in (said := capsys.readouterr().err)
    assert "unexpected ZeroDivisionError" in said
    monkeypatch.setenv("KVSTORE_DEBUG", "1")
    assert main(["size", "--model", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ranks_that_do_not_divide_the_heads_and_wrong_types_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 12, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["size", "--model", str(tmp_path), "--tp", "5"]) == 2
    assert "12 KV heads" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": [4]}))
    assert main(["size", "--model", str(tmp_path)]) == 2
    assert "sliding_window" in capsys.readouterr().err


def test_purge_leaves_foreign_files_alone_and_refuses_options_without_effect(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    at = ["--data-dir", str(tmp_path / "node")]
    assert main(["purge", "--memory-file", str(tmp_path / "mine"), *at]) == 2
    assert (tmp_path / "mine").read_text() == "mine"
    assert main(["purge", "--timeout", "3", *at]) == 2
    assert main(["purge", "--blocks", *at]) == 2
    assert main(["purge", "--orphans", "--force", *at]) == 2
    assert "cannot be combined with --force" in capsys.readouterr().err


def test_an_interrupt_while_libraries_are_imported_is_silent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "rich":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "rich", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    assert main(["stat"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("keys", ["zz", f"{'0' * 32},abcd"])
def test_a_key_that_is_none_is_named(keys: str) -> None:
    with pytest.raises(BadKey, match=r"--keys: key [01] is '(zz|abcd)', a key is 32 hex digits"):
        _from_hex(keys)


@pytest.mark.parametrize(
    ("text", "where"),
    [("1 2\n3, x4\n", "'x4' in line 2, token 3"), ('[1, "b"]', "item 1 of the list"), ("[1,\n2", "line 2 column")],
)
def test_a_bad_token_file_says_where(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(InvalidArgument, match=where):
        read_tokens(tmp_path / "tokens")
