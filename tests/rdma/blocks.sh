#!/bin/sh
# In the guest: nixl moves blocks over soft-RoCE, and says that it did.
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 UCX_NET_DEVICES=rxe0:1 UCX_TLS=rc_verbs,ud_verbs,self
# The libibverbs that NIXL brings finds no driver of Debian's: the system's takes its place (docs/rdma.md).
LD_PRELOAD=libibverbs.so.1 exec .venv/bin/python -m tests.rdma.blocks
