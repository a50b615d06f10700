"""The gRPC control plane: service kvstore.v1.Control, health and reflection."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvstore.core.errors import Unavailable
from kvstore.node.config import NodeConfig
from kvstore.node.control import Control
from kvstore.node.events import MAX_WATCHERS
from kvstore.node.grpc_errors import streaming, unary
from kvstore.node.metrics import NodeMetrics
from kvstore.node.units import Address
from kvstore.v1 import control_pb2, control_pb2_grpc

SERVICE = control_pb2.DESCRIPTOR.services_by_name["Control"]
_WAITING = 4  # calls that wait for a thread, as a multiple of the threads
_UNACKNOWLEDGED_MS = 20_000  # a connection whose peer's machine takes nothing for that long ends, and its streams


class ControlServer:
    """Listens from construction on, serves from :meth:`start` on. Raises Unavailable when the port is in use."""

    def __init__(self, config: NodeConfig, address: Address, control: Control, metrics: NodeMetrics) -> None:
        size = config.control_message_bytes
        self._server = grpc.server(
            ThreadPoolExecutor(config.control_threads, thread_name_prefix="control"),
            options=[
                ("grpc.so_reuseport", 0),  # a second node on this port must fail, not share it
                ("grpc.max_receive_message_length", size),
                ("grpc.max_send_message_length", size),
                ("grpc.keepalive_time_ms", _UNACKNOWLEDGED_MS),  # with it gRPC sets TCP_USER_TIMEOUT, to the next
                ("grpc.keepalive_timeout_ms", _UNACKNOWLEDGED_MS),
            ],
            maximum_concurrent_rpcs=config.control_threads * (1 + _WAITING) + MAX_WATCHERS,
        )
        control_pb2_grpc.add_ControlServicer_to_server(_servicer(control, metrics), self._server)  # type: ignore[no-untyped-call]
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.say_ready(False)
        self.address = Address(address.host, self._bind(address))

    def _bind(self, address: Address) -> int:
        try:
            port = int(self._server.add_insecure_port(str(address)))
        except RuntimeError:
            port = 0
        if not port:
            raise Unavailable(
                f"cannot listen on port {address.port} of {address.host}: it is in use, or not ours; "
                "stop what listens there, or set control_address to another port",
                key="control_address",
            )
        return port

    def start(self) -> None:
        self._server.start()

    def say_ready(self, ready: bool) -> None:
        """What grpc.health.v1 answers."""
        self._say((SERVICE.full_name, ""), serving=ready)

    def stop(self, grace: float) -> None:
        """Refuses new calls; those in progress get ``grace`` seconds."""
        self.say_ready(False)
        self._server.stop(grace).wait(grace + 1.0)

    def _say(self, names: Iterable[str], *, serving: bool) -> None:
        known = health_pb2.HealthCheckResponse.ServingStatus
        for name in names:
            self._health.set(name, known.SERVING if serving else known.NOT_SERVING)


def _servicer(control: Control, metrics: NodeMetrics) -> control_pb2_grpc.ControlServicer:
    """A servicer whose methods are those of ``control``, with errors made typed."""
    servicer = control_pb2_grpc.ControlServicer()
    for method in SERVICE.methods:
        wrap = streaming if method.server_streaming else unary
        setattr(servicer, method.name, wrap(metrics, method.name, getattr(control, _snake(method.name))))
    # Streams without an end have threads of their own, and leave those of the other calls alone.
    threads = ThreadPoolExecutor(MAX_WATCHERS, thread_name_prefix="watch")
    servicer.WatchEvents.experimental_thread_pool = threads  # type: ignore[attr-defined]
    return servicer


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
