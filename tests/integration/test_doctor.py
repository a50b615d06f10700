"""`kvstore doctor` on real machines and nodes: each finding with what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore import Client, NamespaceSpec
from tests.integration.nodes import cli, node

ANY = -1


def doctor(*arguments: str, status: int = 0, **environ: str) -> list[dict[str, Any]]:
    done = cli("doctor", "--json", *arguments, **environ)
    assert status in (done.returncode, ANY), done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


def about(found: list[dict[str, Any]], words: str) -> dict[str, Any]:
    matching = [one for one in found if words in one["what"]]
    assert matching, [one["what"] for one in found]
    return matching[0]


def free_ports(tmp_path: Path) -> list[str]:
    return ["--data-address", "127.0.0.1:0", "--control-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0",
            "--data-dir", str(tmp_path / "data"), "--capacity", "16MiB"]  # fmt: skip


def test_without_a_node_it_says_how_to_start_one(tmp_path: Path) -> None:
    found = doctor(*free_ports(tmp_path), "--target", f"unix://{tmp_path}/none.sock")
    assert about(found, "no node runs here")["fix"] == "start one: kvstore node"
    assert about(found, "16MiB of DRAM fit")["level"] == "ok"
    assert about(found, "Python")["level"] == "ok"
    assert not (tmp_path / "data").exists()


def test_a_node_that_runs_is_looked_at_and_its_own_ports_are_no_trouble(tmp_path: Path) -> None:
    with node(tmp_path / "n") as process:
        arguments = ["--config", str(process.config), "--target", process.target]
        found = doctor(*arguments)
        assert about(found, "speaks protocol")["level"] == "ok"
        assert about(found, "nobody asked it for blocks")["level"] == "note"
        assert not [one for one in found if one["level"] in ("warning", "error")]
        text = cli("doctor", *arguments)
        assert text.returncode == 0
        assert text.stdout.splitlines()[-1] == "all is well"


def test_the_node_of_the_settings_is_the_one_looked_at(tmp_path: Path) -> None:
    with node(tmp_path / "n") as process:
        process.settings.update(data_address=process.data, control_address=process.control, http_address=process.http)
        given = ["--config", str(process.config)]
        for arguments in (given, [*given, "--target", f"grpc://{process.control}"]):
            found = doctor(*arguments)
            assert about(found, "speaks protocol")["level"] == "ok"
            assert not [one for one in found if one["level"] == "error"]


def test_a_hit_rate_of_zero_is_explained_by_the_field_in_which_engines_differ(tmp_path: Path) -> None:
    with node(tmp_path / "n") as process, Client(process.target, timeout=20.0) as client:
        one, other = (client.namespace(NamespaceSpec("llama", 4, 4096, kv_dtype=kind)) for kind in ("bf16", "fp8"))
        keys = one.keys(range(400))
        one.put(keys, [np.zeros(4096, np.uint8)] * 100)
        theirs = other.keys(range(400))
        for _ in range(3):
            assert other.get(theirs, [np.zeros(4096, np.uint8)] * 100) == 0
        found: list[dict[str, Any]] = []
        for _ in range(30):  # the node looks every few seconds
            found = doctor("--config", str(process.config), "--target", process.target, status=ANY)
            if any(one["level"] == "error" for one in found):
                break
        wrong = about(found, "none of the 300 blocks that were asked for was here")
        assert "'llama' do not agree in kv_dtype" in wrong["what"]
        assert "make these fields agree" in wrong["fix"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_too_little_shared_memory_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    small = tmp_path / "shm"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=True)
    try:
        found = doctor(*free_ports(tmp_path), "--memory-dir", str(small), status=1)
        assert "enlarge the filesystem" in about(found, "shared memory")["what"]
    finally:
        subprocess.run(["umount", str(small)], check=True)
    found = doctor(*free_ports(tmp_path), "--memory-dir", str(tmp_path), status=1)
    assert "neither tmpfs nor hugetlbfs" in about(found, "shared memory")["what"]


def test_a_port_that_another_program_has_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [*free_ports(tmp_path), "--http-address", f"127.0.0.1:{port}"]
        found = doctor(*arguments, status=1)
        wrong = about(found, f"http_address 127.0.0.1:{port}")
        assert (wrong["level"], "ss -ltnp" in wrong["fix"]) == ("error", True)


def test_the_disk_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    found = doctor(*free_ports(tmp_path), "--nvme-dir", str(tmp_path / "nvme"), "--nvme-capacity", "64MiB")
    assert about(found, "past the page cache")
    assert os.listdir(tmp_path) == []
    found = doctor(*free_ports(tmp_path), "--nvme-dir", str(tmp_path / "nvme"), "--nvme-capacity", "900TiB", status=1)
    assert about(found, "nvme_capacity is 900TiB")["level"] == "error"
    found = doctor(
        *free_ports(tmp_path), "--nvme-dir", "/dev/shm/kvstore-doctor-test", "--nvme-capacity", "64MiB", status=ANY
    )
    assert about(found, "/dev/shm")


@pytest.mark.parametrize("bad", ["0", "-1", "nan"])
def test_a_wrong_timeout_is_refused(bad: str) -> None:
    done = cli("doctor", "--timeout", bad)
    assert done.returncode == 2
    assert "timeout" in done.stderr
