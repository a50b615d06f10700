"""Keys, namespace roots and checksums are the same in every process, on every machine, for ever."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from kvstore.core.keys import chain_keys
from kvstore.core.namespace import parse_canonical, root_of
from tests.unit.core.golden import FULL, PLAIN, data, vectors

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = json.loads((Path(__file__).parent / "vectors.json").read_text())


def test_this_process_makes_the_golden_vectors() -> None:
    assert vectors() == GOLDEN


@pytest.mark.parametrize("seed", ["0", "1", "4294967295", "random"])
def test_a_process_with_another_hash_seed_makes_the_golden_vectors(seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Pacific/Chatham"}
    command = [sys.executable, "-m", "tests.unit.core.golden"]
    out = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == GOLDEN


def test_the_root_is_the_personalised_blake2b_of_hand_written_json() -> None:
    written = (
        '{"block_tokens":4,"extra":{"attention":"flash","rope_theta":"500000"},"format":1,'
        '"hash_scheme":"kvstore-blake2b-128","kv_dtype":"bfloat16","layout":"NHD","model":"modèle/日本",'
        '"parts":[{"bytes":300000,"group":"full","kind":"prefix","layers":null,"name":"tp0"},'
        '{"bytes":1048576,"group":"full","kind":"prefix","layers":4,"name":"tp1"},'
        '{"bytes":4096,"group":"swa","kind":"window","layers":null,"name":"swa"}],'
        '"tenant":"acme","weights_generation":"2026-11-01"}'
    ).encode()
    assert FULL.canonical() == written
    root = hashlib.blake2b(written, digest_size=16, person=b"kvstore.ns.v1").hexdigest()
    assert root == GOLDEN["full.root"] == root_of(written).hex()
    assert parse_canonical(written) == FULL


def test_a_key_is_the_blake2b_of_its_parent_and_its_tokens() -> None:
    parent, keys = PLAIN.root, []
    for start in (0, 16):
        tokens = b"".join(token.to_bytes(4, "little") for token in range(start, start + 16))
        parent = hashlib.blake2b(parent + tokens, digest_size=16).digest()
        keys.append(parent.hex())
    assert keys == GOLDEN["plain.keys"]


def test_a_key_of_an_engine_hash_is_the_blake2b_of_root_and_hash() -> None:
    root = bytes.fromhex(GOLDEN["full.root"])
    expected = [hashlib.blake2b(root + one, digest_size=16).hexdigest() for one in (b"engine hash 0", bytes(32))]
    assert "".join(expected) == GOLDEN["full.hashed_keys"]


@pytest.mark.parametrize(
    ("index", "name", "length", "chunk"),
    [(0, "tp0", 300_000, 65_536), (1, "tp1", 1 << 20, 1 << 18), (2, "swa", 4096, 65_536)],
)
def test_a_checksum_is_the_xxh3_of_its_chunk_seeded_by_key_part_and_chunk(
    index: int, name: str, length: int, chunk: int
) -> None:
    low, high = struct.unpack("<QQ", bytes.fromhex(GOLDEN["full.keys"][0]))
    golden = 0x9E3779B97F4A7C15
    mask = 2**64 - 1
    seed = ((low ^ (high * golden & mask)) + index * golden) & mask
    payload = bytes((i * 131 + i // 256) % 256 for i in range(length))
    assert payload == bytes(data(length))
    sums = [
        xxhash.xxh3_64(payload[at : at + chunk], seed=seed + number & mask).hexdigest()
        for number, at in enumerate(range(0, length, chunk))
    ]
    assert sums == GOLDEN["full.checksums"][name]


def test_two_namespaces_never_share_a_key() -> None:
    plain = chain_keys(PLAIN.root, range(64), 4)
    full = chain_keys(FULL.root, range(64), 4)
    at = range(0, len(plain), 16)
    assert not {plain[i : i + 16] for i in at} & {full[i : i + 16] for i in at}
