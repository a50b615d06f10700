from __future__ import annotations

import pytest

from kvstore import errors
from kvstore.core.errors import InternalError, KVStoreError, NotServed, by_code, from_wire
from kvstore.v1.types_pb2 import ErrorCode

CODES = {value: name for name, value in ErrorCode.items() if value}


def test_every_code_of_the_wire_contract_has_an_exception_and_no_other_code_has() -> None:
    assert set(by_code()) == set(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_error_comes_out_of_the_wire_as_it_went_in(code: int) -> None:
    error = from_wire(code, "what is wrong", {"field": "model"})
    assert type(error) is by_code()[code]
    assert (error.code, str(error), error.details) == (code, "what is wrong", {"field": "model"})


def test_a_code_from_a_newer_version_is_still_an_error_of_ours() -> None:
    assert type(from_wire(999, "later", {})) is InternalError


def test_what_a_cache_user_may_treat_as_a_miss_is_no_mistake_of_his() -> None:
    served = {cls for cls in by_code().values() if issubclass(cls, NotServed)}
    assert not any(issubclass(cls, ValueError) for cls in served)
    assert {errors.Busy, errors.Unavailable, errors.DeadlineExceeded, errors.NoSpace} <= served


def test_the_public_module_names_every_exception() -> None:
    public = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, KVStoreError)}
    assert set(by_code().values()) | {KVStoreError, NotServed} <= public
