#!/bin/sh
# In the guest: nixl moves blocks over soft-RoCE, and says that it did.
cd "$(dirname "$0")/../.."
# The libibverbs that NIXL brings looks for drivers where other distributions have them.
export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/libibverbs
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc_verbs,ud_verbs,self
exec .venv/bin/python -m tests.rdma.blocks
