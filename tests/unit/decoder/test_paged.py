"""Pool and tables: nothing is lost, nothing shared is written."""

from __future__ import annotations

import pytest
import torch

from kvstore.connector.decoder import Engine, Request, Sampling
from kvstore.connector.decoder.paged import BLOCK_TOKENS, BlockPool, BlockTable
from kvstore.core.errors import InvalidArgument, NoSpace
from tests.unit.decoder.helpers import prompt, random_model


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(random_model().config, blocks=6)


def test_a_full_pool_says_what_to_raise(pool: BlockPool) -> None:
    BlockTable(pool).grow(6 * BLOCK_TOKENS)
    with pytest.raises(NoSpace, match="larger pool"):
        pool.allocate()


def test_a_block_is_free_again_after_its_last_reference(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.grow(33)
    other = table.fork()
    table.close()
    assert pool.free == 3
    other.close()
    other.close()
    assert pool.free == 6


def test_a_shared_tail_is_copied_before_it_is_written(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.grow(20)
    pool.storage[table.blocks[1]] = 7.0
    other = table.fork()
    other.make_writable(20)
    assert other.blocks[0] == table.blocks[0]
    assert other.blocks[1] != table.blocks[1]
    assert torch.equal(pool.storage[other.blocks[1]], pool.storage[table.blocks[1]])
    table.make_writable(20)
    assert pool.free == 3, "the last holder writes in place"


def test_the_buffer_of_a_block_is_its_bytes_layer_after_layer(pool: BlockPool) -> None:
    block = pool.allocate()
    pool.storage[block] = torch.arange(pool.storage[block].numel()).view(pool.storage[block].shape).float()
    whole = bytes(pool.buffer(block))
    assert len(whole) == pool.block_bytes
    assert whole == pool.storage[block].numpy().tobytes()
    assert bytes(pool.buffer(block, 1, 2)) == pool.storage[block, 1:].numpy().tobytes()


def test_gather_gives_the_tokens_of_a_table_in_order(pool: BlockPool) -> None:
    table = BlockTable(pool)
    table.grow(40)
    keys = torch.randn(40, 2, 16)
    pool.write(2, table.places(0, 40), keys, -keys)
    got_keys, got_values = pool.gather(2, pool.rows(table.tensor(4)))
    assert torch.equal(got_keys[:, :40].transpose(0, 1), keys)
    assert torch.equal(got_values[:, :40].transpose(0, 1), -keys)
    assert not got_keys[:, 40:].any(), "the rest is the null block"


def test_samples_of_one_prompt_share_its_blocks() -> None:
    engine = Engine(random_model(), pool_tokens=512, max_batch=4)
    request = Request(prompt(300), max_new_tokens=8, sampling=Sampling(temperature=1.0), samples=4)
    _, result = engine.submit(request)
    least = engine.pool.blocks
    while not engine.idle:
        engine.step()
        least = min(least, engine.pool.free)
    assert engine.pool.blocks - least <= 18 + 4 * 2, "four copies of the prompt would take 80 blocks"
    assert engine.pool.free == engine.pool.blocks
    assert all(len(ids) == 8 for ids in result.ids)


def test_requests_that_do_not_fit_together_run_one_after_the_other() -> None:
    engine = Engine(random_model(), pool_tokens=400, max_batch=4)
    results = engine.run([Request(prompt(250, seed=seed), max_new_tokens=5) for seed in range(3)])
    assert [len(result.ids[0]) for result in results] == [5, 5, 5]


def test_generation_stops_at_a_stop_id() -> None:
    model = random_model()
    (free,) = Engine(model).run([Request(prompt(50), max_new_tokens=8)])
    (stopped,) = Engine(model).run([Request(prompt(50), max_new_tokens=8, stop=(free.ids[0][3],))])
    assert stopped.ids[0] == free.ids[0][: free.ids[0].index(free.ids[0][3]) + 1]


@pytest.mark.parametrize(
    ("request_", "error", "named"),
    [
        (Request(prompt(5000)), InvalidArgument, "positions"),
        (Request((1, 400)), InvalidArgument, "0 to 258"),
        (Request((1,), samples=9), InvalidArgument, "max_batch"),
        (Request(prompt(600)), NoSpace, "blocks"),
    ],
)
def test_a_request_that_can_never_run_is_refused(request_: Request, error: type[Exception], named: str) -> None:
    engine = Engine(random_model(), pool_tokens=512)
    with pytest.raises(error, match=named):
        engine.submit(request_)
    assert engine.idle


@pytest.mark.parametrize("bad", [{"tokens": ()}, {"tokens": (1,), "max_new_tokens": 0}, {"tokens": (1,), "samples": 0}])
def test_an_empty_request_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        Request(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [0, 8, 100])
def test_chunks_are_whole_blocks(chunk: int) -> None:
    with pytest.raises(InvalidArgument, match="multiple of 16"):
        Engine(random_model(), chunk_tokens=chunk)
