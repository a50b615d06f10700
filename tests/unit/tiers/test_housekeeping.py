"""When blocks were last used is written into their headers later, once for many reads."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.tiers import housekeeping
from kvstore.tiers.housekeeping import Housekeeper
from tests.unit.tiers.stores import ONE, keys_of, opened, put


@pytest.mark.parametrize("gathered", [1, 3, 65_536])
def test_every_block_that_was_read_is_stamped_once(gathered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_GATHERED", gathered)
    with opened() as store:
        next(one for one in store._threads if one._thread.name.endswith("housekeeping")).stop()
        view, session = store.open_namespace(ONE.canonical()), store.open_session(False)
        chains = [keys_of(ONE, path) for path in ((1, 2, 3), (1, 2, 4), (5,))]
        for seed, keys in enumerate(chains):
            put(store, session, view, keys, seed=seed)
        state = store._state
        for keys in (*chains[:2], chains[0]):
            store.release(session, [store.acquire(session, view.handle, keys).lease])
        number = state.namespaces.by_handle(view.handle).id
        read = np.unique(np.concatenate([state.index.find(number, keys) for keys in chains[:2]])).tolist()
        stamped: list[int] = []
        keeper = Housekeeper(state)
        monkeypatch.setattr(keeper, "_stamp", lambda rows, stamp: stamped.extend(rows.tolist()))
        keeper.flush()
        assert sorted(set(stamped)) == read
        assert len(stamped) == (len(read) if gathered == 65_536 else 9)
        keeper.flush()
        assert len(stamped) == (len(read) if gathered == 65_536 else 9)
