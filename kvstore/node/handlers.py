"""What each op of the data path does: checks everything first, then asks the store. A refused request has no effect."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError, Message

import kvstore
from kvstore.core.errors import (
    BadKey,
    Busy,
    FrameTooLarge,
    InvalidArgument,
    ProtocolError,
    SessionLost,
    TooManyKeys,
    Unsupported,
    VersionMismatch,
)
from kvstore.core.keys import KEY_BYTES, KeyArray, key_array
from kvstore.node.identity import Identity
from kvstore.node.lane import Lane, Reply
from kvstore.node.layout import Layout, layout_of
from kvstore.node.sessions import NodeSession, Sessions
from kvstore.transport.frame import MIN_VERSION, VERSION, Limits, Op
from kvstore.v1 import data_pb2 as pb
from kvstore.v1 import types_pb2 as types
