"""Puts a block by way of a node and gets it back: what an engine does. Exit status 0 when the bytes are the same."""

import os
import secrets
import sys

from kvstore import Client, NamespaceSpec

SIZE = 64 << 10


def main() -> int:
    client = Client(sys.argv[1], timeout=10)
    try:
        ns = client.namespace(NamespaceSpec(model="helm-test", block_tokens=16, block_bytes=SIZE))
        keys = ns.keys([secrets.randbelow(1 << 31) for _ in range(16)])
        block, back = os.urandom(SIZE), bytearray(SIZE)
        done = ns.put(keys, [block])
        found = ns.get(keys, into=[back])
        ns.evict(keys)
    finally:
        client.close()
    good = found == 1 and bytes(back) == block
    print("a block went to the node and came back" if good else f"the block did not come back: {done}, {found} found")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
