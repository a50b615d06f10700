"""What the node and its index process say to each other: frames of HEAD and a body, on two pipes."""

from __future__ import annotations

import struct

HEAD = struct.Struct("<II")  # op or status, length of what follows
COMMIT_HEAD = struct.Struct("<IIII")  # puts, deletes, bytes a record, metas
META_HEAD = struct.Struct("<BHI")  # database, key length, value length (0: delete)
STATUS = struct.Struct("<QQQ")  # bytes of the index file, entries, map size

HELLO, COMMIT, SCAN, GET, METAS, RESERVE, PING, BYE = range(1, 9)
OK, MORE, FAILED = 0, 1, 2
NAMESPACES, SETTINGS = 0, 1  # databases of metas
SCAN_RECORDS = 65_536
