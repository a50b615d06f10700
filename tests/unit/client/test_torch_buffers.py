"""torch tensors as buffers."""

from __future__ import annotations

import pytest
import torch

from kvstore.client.buffers import rows
from kvstore.core.errors import InvalidArgument
from kvstore.core.namespace import PartSpec
from kvstore.transport.plan import make_plan

ONE = make_plan((PartSpec("0", 64),), (), None)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "float8_e4m3fn", "bool"])
def test_torch_tensors_of_any_type_are_taken_without_a_copy(dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensor = torch.arange(64, dtype=torch.uint8).view(kind) if dtype != "bool" else torch.ones(64, dtype=kind)
    [row] = rows([tensor.reshape(2, -1)], 1, ONE, writable=True)
    row[0] = 77
    assert tensor.view(torch.uint8)[0] == 77


def test_torch_tensors_that_cannot_be_taken_say_why() -> None:
    with pytest.raises(InvalidArgument, match=r"buffer 0.*not contiguous"):
        rows([torch.zeros(8, 8, dtype=torch.uint8).t()], 1, ONE, writable=False)
    with pytest.raises(InvalidArgument, match=r"buffer 0.*meta"):
        rows([torch.zeros(64, dtype=torch.uint8, device="meta")], 1, ONE, writable=False)
    with pytest.raises(InvalidArgument, match=r"buffer 0.*sparse.*to_dense"):
        rows([torch.eye(8).to_sparse()], 1, ONE, writable=False)
    with pytest.raises(InvalidArgument, match=r"buffer 0.*resolve_conj"):
        rows([torch.zeros(8, dtype=torch.complex64).conj()], 1, ONE, writable=False)
    parameter = torch.nn.Parameter(torch.zeros(16))
    assert rows([parameter], 1, ONE, writable=True)[0].size == 64
