"""The status page of a node: what it is, how it has been doing, what is wrong and what to do about it."""

from kvstore.node.status.page import StatusPage

__all__ = ["StatusPage"]
