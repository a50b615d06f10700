"""The small parts: options, breaker, rates, memory of failures, statistics, staging, weights, pages."""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.connector.vllm.adapters import AdapterDigests
from kvstore.connector.vllm.breaker import CLOSED, HALF_OPEN, LONGEST_PAUSE_S, OPEN, Breaker
from kvstore.connector.vllm.descriptor import OwnPart
from kvstore.connector.vllm.memory import FAILURE_S, FailureMemory, SaveMemory
from kvstore.connector.vllm.mover import Mover, Span, spans_of_loads
from kvstore.connector.vllm.options import CHOICES, Options
from kvstore.connector.vllm.pages import HostPages, UnsupportedPages, place, runs
from kvstore.connector.vllm.planner import LoadRun
from kvstore.connector.vllm.rates import TRY_ANYWAY, Rates
from kvstore.connector.vllm.staging import Staging
from kvstore.connector.vllm.stats import COUNTERS, GAUGES, LABELS, TIMES, Recorder, kind, merge, summary
from kvstore.connector.vllm.track import Handoff, handoff_of, tag_of
from kvstore.connector.vllm.weights import NoWeights, digest_dir
from kvstore.core.errors import ConfigError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# --- options


def test_defaults_are_valid_and_every_option_says_what_it_does() -> None:
    assert Options.parse({}) == Options()
    assert all(f.metadata["doc"] for f in dataclasses.fields(Options))
    assert CHOICES.keys() <= {f.name for f in dataclasses.fields(Options)}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"targte": "x"}, "did you mean 'target'"),
        ({"zzz": 1}, "known: target"),
        ({"load": "sometimes"}, "one of always, auto, never"),
        ({"min_hit_tokens": 0}, "at least 1"),
        ({"min_hit_tokens": "64"}, "must be int"),
        ({"multimodal": 1}, "must be bool"),
        ({"head_parts": 65}, "0 to 64"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Options.parse(given)


def test_whole_numbers_are_fine_where_seconds_are_wanted() -> None:
    assert Options.parse({"load_timeout_s": 3}).load_timeout_s == 3.0


# --- breaker


def test_a_hard_failure_opens_at_once_and_one_caller_tries_after_the_pause() -> None:
    clock = Clock()
    breaker = Breaker("x", 1.0, clock=clock)
    assert breaker.allow()
    breaker.failure("gone")
    assert (breaker.state, breaker.blocked, breaker.allow()) == (OPEN, True, False)
    clock.now = 1.1
    assert not breaker.blocked
    assert breaker.allow()
    assert (breaker.state, breaker.allow()) == (HALF_OPEN, False)
    breaker.success()
    assert (breaker.state, breaker.allow(), breaker.level) == (CLOSED, True, 0)


def test_the_pause_doubles_up_to_its_bound_and_starts_anew_after_a_success() -> None:
    clock = Clock()
    breaker = Breaker("x", 1.0, clock=clock)
    pauses = []
    for _ in range(8):
        breaker.failure("gone")
        before = clock.now
        while not breaker.allow():
            clock.now += 0.25
        pauses.append(clock.now - before)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert LONGEST_PAUSE_S == 30
    breaker.success()
    breaker.failure("gone")
    clock.now += 1.0
    assert breaker.allow()


def test_slowness_opens_only_when_it_lasts() -> None:
    breaker = Breaker("x", 1.0, soft_limit=3)
    breaker.failure("slow", soft=True)
    breaker.failure("slow", soft=True)
    breaker.success()
    for _ in range(2):
        breaker.failure("slow", soft=True)
        assert breaker.state == CLOSED
    breaker.failure("slow", soft=True)
    assert breaker.state == OPEN


def test_a_caller_that_never_reports_back_does_not_block_the_others_for_ever() -> None:
    clock = Clock()
    breaker = Breaker("x", 1.0, clock=clock)
    breaker.failure("gone")
    clock.now = 1.5
    assert breaker.allow()
    clock.now = 3.0
    assert breaker.allow()


# --- load or recompute


def test_until_both_rates_are_known_blocks_are_loaded() -> None:
    rates = Rates()
    assert rates.worth_loading(1000)
    rates.prefilled(1000, 0.001)
    rates.prefilled(1000, 0.001)
    assert rates.worth_loading(1000)


def test_the_faster_way_is_taken_and_the_other_measured_now_and_then() -> None:
    rates = Rates()
    for _ in range(3):
        rates.prefilled(1000, 0.1)
        rates.loaded(1000, 0.2, 0.25)
    assert [rates.worth_loading(1000) for _ in range(2 * TRY_ANYWAY)].count(True) == 2
    for _ in range(20):
        rates.loaded(1000, 0.01, 0.011)
    assert rates.worth_loading(1000)


def test_small_steps_say_nothing_about_the_prefill_rate() -> None:
    rates = Rates()
    rates.prefilled(8, 0.1)
    assert rates.prefill_seconds(100) is None


# --- memory


def test_a_failed_block_cuts_hits_for_a_while_longer_each_time() -> None:
    memory, keys = FailureMemory(), [bytes([i]) * 16 for i in range(5)]
    memory.failed([keys[2]], now=0.0)
    assert memory.cut(keys, 5, now=FAILURE_S - 0.1) == 2
    assert memory.cut(keys, 5, now=FAILURE_S + 0.1) == 5
    assert memory.cut(keys, 2, now=0.0) == 2
    memory.failed([keys[2]], now=20.0)
    assert memory.cut(keys, 5, now=20 + 2 * FAILURE_S - 0.1) == 2


def test_memories_are_bounded() -> None:
    failures, saves = FailureMemory(bound=3), SaveMemory(bound=3)
    keys = [bytes([i]) * 16 for i in range(9)]
    failures.failed(keys, 0.0)
    saves.send(keys)
    saves.dropped(keys[:6])
    assert len(failures) == 3
    assert [saves.sent(key) for key in keys] == [False] * 6 + [True] * 3
    assert [saves.gap(key) for key in keys] == [False] * 3 + [True] * 3 + [False] * 3


def test_what_a_lookup_did_not_find_is_saved_again() -> None:
    saves, key = SaveMemory(), b"k" * 16
    saves.send([key])
    saves.absent([key])
    assert not saves.sent(key)
    saves.dropped([key])
    saves.send([key])
    assert not saves.gap(key)


# --- statistics


def test_statistics_add_up_over_ranks_and_survive_pickling() -> None:
    a, b = Recorder(), Recorder()
    for recorder in (a, b):
        recorder.add("saved_tokens", 10)
        recorder.add("dropped_tokens", 3, "pressure")
        recorder.time("load_seconds", 0.5)
        recorder.gauge("breaker_state", 2 if recorder is b else 0, "worker")
        recorder.gauge("namespace_open", 0 if recorder is b else 1, "worker")
    left, right = a.take(), b.take()
    assert left is not None
    assert right is not None
    total = merge(pickle.loads(pickle.dumps(left)), right)
    assert total["saved_tokens"] == 20
    assert total["dropped_tokens:pressure"] == 6
    assert total["load_seconds"] == [0.5, 0.5]
    assert total["breaker_state:worker"] == 2
    assert total["namespace_open:worker"] == 0
    assert a.take() is None
    shown = summary(total)
    assert shown["breaker_state:worker"] == "open"
    assert shown["load_ms"] == 500.0


def test_gauges_are_reported_when_they_change() -> None:
    recorder = Recorder()
    recorder.gauge("breaker_state", 0, "worker")
    assert recorder.take() == {"breaker_state:worker": 0}
    recorder.gauge("breaker_state", 0, "worker")
    assert recorder.take() is None


def test_every_metric_has_one_kind_and_a_text() -> None:
    names = [*COUNTERS, *TIMES, *GAUGES]
    assert len(names) == len(set(names))
    assert set(LABELS) <= set(names)
    assert {kind(name) for name in TIMES} == {"time"}
    assert {kind(f"{name}:x") for name in GAUGES} == {"gauge"}


# --- staging


def test_staging_is_bounded_and_waits_no_longer_than_asked() -> None:
    staging = Staging(32 << 20, largest=100)
    pieces = [staging.take() for _ in range(4)]
    assert all(piece is not None for piece in pieces)
    assert staging.take() is None
    assert staging.take(0.01) is None
    threading.Timer(0.05, staging.give, [pieces[0]]).start()
    assert staging.take(5.0) is pieces[0]
    assert staging.in_use == 4


def test_a_block_larger_than_a_piece_makes_larger_pieces() -> None:
    assert Staging(1 << 20, largest=50 << 20).piece_bytes == 50 << 20


# --- weights


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_weights_are_known_by_content_not_by_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "model.safetensors", b"weights")
        write(tmp_path / name / "config.json", name.encode())
    cache = str(tmp_path / "cache")
    same = digest_dir(str(tmp_path / "a"), cache)
    assert digest_dir(str(tmp_path / "b"), cache) == same
    write(tmp_path / "b" / "model.safetensors", b"weightz")
    os.utime(tmp_path / "b" / "model.safetensors", ns=(1, 1))
    assert digest_dir(str(tmp_path / "b"), cache) != same
    write(tmp_path / "a" / "more.safetensors", b"")
    assert digest_dir(str(tmp_path / "a"), cache) != same


def test_a_digest_is_taken_once_per_file(tmp_path: Path) -> None:
    file = tmp_path / "m" / "model.safetensors"
    write(file, b"weights")
    first = digest_dir(str(tmp_path / "m"), str(tmp_path / "cache"))
    stat = file.stat()
    file.write_bytes(b"changed")  # same size; with the old times nobody could tell
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digest_dir(str(tmp_path / "m"), str(tmp_path / "cache")) == first
    assert digest_dir(str(tmp_path / "m"), str(tmp_path / "other")) != first


def test_files_of_a_hub_are_known_by_their_names(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    write(blob, b"x")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(blob)
    before = digest_dir(str(tmp_path / "snapshot"), str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists(), "nothing had to be read"
    assert before


def test_a_place_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoWeights, match="holds no weight files"):
        digest_dir(str(tmp_path), str(tmp_path / "cache"))


def test_an_adapter_is_known_by_its_content(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        write(tmp_path / name / "adapter_model.safetensors", content)

    def lora(name: str, number: int, **more: Any) -> Any:
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(tmp_path / name), **more)

    digests = AdapterDigests(Options.parse({"cache_dir": str(tmp_path / "cache")}))
    a, b, c = (digests.salt(lora(name, i)) for i, name in enumerate("abc"))
    assert a == b != c
    assert digests.salt(None) == b""
    assert digests.salt(lora("gone", 9)) is None
    assert "'gone' are not cached" in caplog.text
    assert digests.salt(lora("a", 0, load_inplace=True)) is None
    assert digests.salt(lora("a", 0)) is None, "its content may have changed since"
    assert AdapterDigests(Options.parse({"lora": "refuse"})).salt(lora("a", 0)) is None
    assert AdapterDigests(Options.parse({"lora": "trust-name"})).salt(lora("gone", 1))


# --- pages


class Tensor:
    """The few methods of a torch tensor that pages use, over numpy."""

    def __init__(
        self, storage: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...], at: int
    ) -> None:
        self.storage, self.shape, self._strides, self._at = storage, shape, strides, at

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return int(self.storage.ctypes.data) + self._at

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: int(self.storage.ctypes.data), nbytes=lambda: self.storage.nbytes)


def layers(order: str, blocks: int = 6, count: int = 3) -> tuple[np.ndarray[Any, Any], dict[str, Tensor]]:
    """Layers of pages of (2 heads, 4 tokens, 8 values), layer- or block-outermost."""
    page = 2 * 4 * 8
    storage = np.random.default_rng(0).integers(0, 1 << 16, blocks * count * page, dtype=np.uint16).view(np.uint8)
    block = page if order == "LB" else page * count
    layer = page * blocks if order == "LB" else page
    made = {f"l{i}": Tensor(storage, (blocks, 2, 4, 8), (block, 32, 8, 1), 2 * layer * i) for i in range(count)}
    return storage, made


@pytest.mark.parametrize("order", ["LB", "BL"])
def test_pages_are_gathered_layer_by_layer_and_scattered_back(order: str) -> None:
    storage, caches = layers(order)
    pages = HostPages(caches, {0: list(caches)}, 6)
    assert pages.page_bytes(0) == 3 * 128
    out = np.zeros((2, 384), np.uint8)
    pages.gather(0, (0, 1), [4, 2], out)
    for row, page in enumerate((4, 2)):
        for layer, tensor in enumerate(caches.values()):
            start = tensor._at + 2 * page * tensor.stride()[0]
            assert out[row, layer * 128 : (layer + 1) * 128].tobytes() == storage[start : start + 128].tobytes()
    before = storage.copy()
    pages.scatter(0, (0, 1), [1, 0], out)
    again = np.zeros((1, 384), np.uint8)
    pages.gather(0, (0, 1), [1], again)
    assert again[0].tobytes() == out[0].tobytes()
    first = caches["l0"]
    assert storage[first._at : first._at + 128].tobytes() == before[first._at : first._at + 128].tobytes(), (
        "page 0 is null"
    )


def test_head_ranges_of_a_page_are_its_columns() -> None:
    _, caches = layers("LB")
    pages = HostPages(caches, {0: list(caches)}, 6)
    whole, halves = np.zeros((1, 384), np.uint8), [np.zeros((1, 192), np.uint8) for _ in range(2)]
    pages.gather(0, (0, 1), [3], whole)
    for index in range(2):
        pages.gather(0, (index, 2), [3], halves[index])
    joined = np.concatenate([h.reshape(3, 64) for h in halves], axis=1)
    assert joined.tobytes() == whole.tobytes()


def test_kernel_blocks_of_a_block_are_one_page() -> None:
    storage = np.arange(4 * 2 * 32, dtype=np.uint16).view(np.uint8)
    found = place(Tensor(storage, (8, 1, 4, 8), (32, 32, 8, 1), 0), 4)
    assert (found.stride, found.page_bytes) == (128, 128)


def test_pages_in_pieces_are_refused() -> None:
    storage = np.zeros(4096, np.uint8)
    with pytest.raises(UnsupportedPages, match="not contiguous"):
        place(Tensor(storage, (4, 2, 4, 8), (32, 512, 8, 1), 0), 4)
    with pytest.raises(UnsupportedPages, match="kernel blocks"):
        place(Tensor(storage, (5, 2, 4, 8), (64, 32, 8, 1), 0), 4)


def test_layers_at_one_distance_are_one_run() -> None:
    _, caches = layers("BL")
    places = [place(tensor, 6) for tensor in caches.values()]
    assert [(count, step) for _, count, step in runs(places)] == [(3, 128)]
    assert [count for _, count, _ in runs([places[0], places[2], places[1]])] == [2, 1]


def test_spans_are_cut_into_pieces_that_fit_and_name_buffers_block_major() -> None:
    pages: Any = SimpleNamespace(page_bytes=lambda group: 100 * (group + 1))
    mover = Mover(pages, [OwnPart(0, 0, 0, 1), OwnPart(3, 1, 0, 2)], {0: 1, 1: 2})
    assert mover.block_bytes == 100 + 200
    span = Span(5, 4, {0: (1, 2, 3, 4), 1: (1, 2, 3, 4, 5, 6, 7, 8)})
    cut = mover.batches(span, 650)
    assert [(c.first, c.count, c.pages[1]) for c in cut] == [(5, 2, (1, 2, 3, 4)), (7, 2, (5, 6, 7, 8))]
    buffers = mover.buffers(cut[0], np.zeros(1000, np.uint8))
    assert [len(buffer) for buffer in buffers] == [100, 200, 100, 200]


def test_groups_with_one_range_are_fetched_together() -> None:
    spans = spans_of_loads([LoadRun(0, 0, 2, (1, 2)), LoadRun(1, 1, 1, (3,)), LoadRun(2, 0, 2, (4, 5))])
    assert [(s.first, s.count, s.groups) for s in spans] == [(0, 2, (0, 2)), (1, 1, (1,))]


# --- handoff


def test_only_our_own_announcements_are_taken() -> None:
    ours = {"do_remote_prefill": True, "kvstore": {"blocks": 3, "namespace": "n", "node": "x"}}
    assert handoff_of(ours) == Handoff(3, "n", "x")
    theirs = [None, {}, {"do_remote_prefill": True}, {**ours, "do_remote_prefill": False}]
    broken = [{**ours, "kvstore": value} for value in ({"blocks": -1}, {"blocks": "3"}, 3)]
    for other in [*theirs, *broken]:
        assert handoff_of(other) is None


def test_request_ids_on_the_wire_are_never_zero() -> None:
    assert all(0 < tag_of(str(i)) < 1 << 64 for i in range(100))


# --- the manual


def test_the_manual_lists_every_option_with_its_default_and_every_metric() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "vllm.md").read_text()
    for option in dataclasses.fields(Options):
        shown = str(option.default).lower() if isinstance(option.default, bool) else option.default
        default = f"`{shown}`" if shown != "" else "empty"
        assert f"| `{option.name}` | {default} | {option.metadata['doc']} |" in text
    for name in [*COUNTERS, *TIMES, *GAUGES]:
        assert f"kvstore_{name}" in text or f"`_{name}`" in text, name
