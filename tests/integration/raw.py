"""The data path spoken by hand, so that tests can also say what no client would."""

from __future__ import annotations

import socket
import time
from types import TracebackType

import numpy as np
from google.protobuf.message import Message

from kvstore.core.checksum import chunk_sums, chunking, part_seed
from kvstore.core.errors import KVStoreError
from kvstore.core.keys import KEY_BYTES, chain_keys
from kvstore.core.namespace import NamespaceSpec
from kvstore.transport.frame import Header, Op, encode_header, recv_exact, recv_frame
from kvstore.transport.wire_error import decode_error
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types

SPEC = NamespaceSpec(model="raw", block_tokens=4, block_bytes=100_000)
PATIENCE = 30.0
REPLIES: dict[Op, type[Message]] = {
    Op.HELLO: pb.HelloReply,
    Op.ATTACH: pb.AttachReply,
    Op.OPEN_NAMESPACE: pb.OpenNamespaceReply,
    Op.MATCH: pb.MatchReply,
    Op.GET: pb.GetReply,
    Op.RELEASE: pb.ReleaseReply,
    Op.RESERVE: pb.ReserveReply,
    Op.WRITE: pb.WriteReply,
    Op.COMMIT: pb.CommitReply,
    Op.ABORT: pb.AbortReply,
    Op.PUT: pb.PutReply,
    Op.EVICT: pb.EvictKeysReply,
    Op.PIN: pb.PinKeysReply,
    Op.UNPIN: pb.UnpinKeysReply,
    Op.ROTATE: pb.RotateReply,
    Op.PREFETCH: pb.PrefetchKeysReply,
    Op.PING: pb.PingReply,
    Op.BYE: pb.ByeReply,
}


class Raw:
    """One connection. ``address``: path of a unix socket, or "host:port"."""

    def __init__(self, address: str, *, hello: bool = True, **fields: object) -> None:
        if ":" in address:
            host, _, port = address.rpartition(":")
            self.sock = socket.create_connection((host, int(port)))
        else:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(address)
        self.sock.settimeout(PATIENCE)
        self.greeting = self.hello(**fields) if hello else None

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.sock.close()

    # --- speaking -------------------------------------------------------------------------------------------

    def hello(self, **fields: object) -> pb.HelloReply:
        request = pb.HelloRequest(**{"version": 1, "min_version": 1, "client": "test", **fields})  # type: ignore[arg-type]
        reply, _ = self.call(Op.HELLO, request)
        assert isinstance(reply, pb.HelloReply)
        return reply

    def send(self, op: int, message: Message | bytes = b"", payload: bytes = b"", flags: int = 0) -> None:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        self.sock.sendall(encode_header(op, len(data), len(payload), flags=flags, request_id=77) + data + payload)

    def receive(self) -> tuple[Header, bytes, bytes]:
        """Header, message and payload of the next frame."""
        frame = recv_frame(self.sock, deadline=time.monotonic() + PATIENCE)
        assert frame is not None, "the node closed the connection"
        header, message = frame
        payload = bytearray(header.payload_len)
        if payload:
            recv_exact(self.sock, memoryview(payload), time.monotonic() + PATIENCE)
        return header, bytes(message), bytes(payload)

    def answer(self) -> tuple[Message, bytes]:
        """The next reply. Raises the error that it carries."""
        header, message, payload = self.receive()
        if header.is_error:
            raise decode_error(message)
        assert header.request_id == 77
        return REPLIES[header.op].FromString(message), payload

    def call(self, op: Op, message: Message | bytes = b"", payload: bytes = b"") -> tuple[Message, bytes]:
        self.send(op, message, payload)
        return self.answer()

    def error(self, op: int, message: Message | bytes = b"", payload: bytes = b"") -> KVStoreError:
        """The error that a request is answered with."""
        self.send(op, message, payload)
        return self.expect_error()

    def expect_error(self) -> KVStoreError:
        header, message, _ = self.receive()
        assert header.is_error, f"{header.op.name} was answered"
        return decode_error(message)

    def closed(self) -> bool:
        """Whether the node closes this connection."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    # --- common requests ------------------------------------------------------------------------------------

    def open(self, spec: NamespaceSpec = SPEC) -> int:
        reply, _ = self.call(Op.OPEN_NAMESPACE, pb.OpenNamespaceRequest(canonical=spec.canonical(), root=spec.root))
        return reply.handle  # type: ignore[attr-defined,no-any-return]

    def put(self, handle: int, count: int, salt: int = 0, spec: NamespaceSpec = SPEC) -> pb.PutReply:
        keys = keys_of(count, salt, spec)
        reply, _ = self.call(Op.PUT, put_request(handle, keys), payload_of(keys, spec))
        assert isinstance(reply, pb.PutReply)
        return reply

    def match(self, handle: int, keys: bytes) -> int:
        reply, _ = self.call(Op.MATCH, pb.MatchRequest(namespace=handle, keys=keys))
        return reply.blocks  # type: ignore[attr-defined,no-any-return]

    def get(self, handle: int, keys: bytes, **fields: object) -> tuple[pb.GetReply, bytes]:
        request = pb.GetRequest(namespace=handle, keys=keys, **fields)  # type: ignore[arg-type]
        reply, payload = self.call(Op.GET, request)
        assert isinstance(reply, pb.GetReply)
        return reply, payload


def keys_of(count: int, salt: int = 0, spec: NamespaceSpec = SPEC) -> bytes:
    """Keys of a chain of ``count`` blocks; another salt is another chain."""
    tokens = np.arange(count * spec.block_tokens, dtype=np.uint32) + salt * 30_011
    return chain_keys(spec.root, tokens, spec.block_tokens)


def block_of(key: bytes, size: int) -> bytes:
    """The bytes that tests store under a key."""
    return np.random.default_rng(int.from_bytes(key[:8], "little")).bytes(size)


def data_of(keys: bytes, spec: NamespaceSpec = SPEC) -> list[bytes]:
    """Parts of blocks, block-major."""
    split = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
    return [block_of(key + bytes([nth]), part.bytes) for key in split for nth, part in enumerate(spec.parts)]


def payload_of(keys: bytes, spec: NamespaceSpec = SPEC) -> bytes:
    """Payload of a PUT: the data and its checksum tail."""
    data = data_of(keys, spec)
    return b"".join(data) + sums_of(keys, data, spec).tobytes()


def sums_of(keys: bytes, data: list[bytes], spec: NamespaceSpec = SPEC) -> np.ndarray:  # type: ignore[type-arg]
    width, found = len(spec.parts), []
    for nth, part_bytes in enumerate(data):
        key = keys[nth // width * KEY_BYTES :][:KEY_BYTES]
        cut = chunking(spec.parts[nth % width])
        found.append(chunk_sums(memoryview(part_bytes), part_seed(key, nth % width), cut))
    return np.concatenate(found)


def put_request(handle: int, keys: bytes, first: int = 0, **fields: object) -> pb.PutRequest:
    """PUT of blocks ``first`` on of a chain; ``keys`` is the whole chain."""
    parent = keys[(first - 1) * KEY_BYTES : first * KEY_BYTES] if first else b""
    chain = types.ChainSlice(keys=keys[first * KEY_BYTES :], parent=parent, first_block=first)
    return pb.PutRequest(namespace=handle, chain=chain, **fields)  # type: ignore[arg-type]
