"""Errors of the broker in the words of Pub/Sub (protocol 1.2.5, 1.6.3, 1.8.2)."""

from __future__ import annotations

from collections.abc import Sequence

from google.rpc.error_details_pb2 import ErrorInfo

from heliograph.errors import (
    AlreadyExists,
    HeliographError,
    InvalidAckId,
    NotFound,
    SchemaNotFound,
    SnapshotNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)
from heliograph.server.grpc.status import INVALID_ARGUMENT, RpcError, rpc_error
from heliograph.server.pubsub.names import leaf

ERROR_INFO_URL = "type.googleapis.com/google.rpc.ErrorInfo"

ERROR_INFO_BYTES_MAX = 4_500
"""Base64 makes 6 KB of it. Clients accept 8 KiB of headers before they may refuse the answer as a whole, which the
Python client takes for a passing failure and retries. And where any id is named, the Java client takes the others for
successes; so where not all can be named none is, and clients call the outcome of each unknown."""


def translate(error: HeliographError) -> RpcError:
    """The status that a Pub/Sub client gets for an error of the broker."""
    if isinstance(error, (TopicNotFound, SubscriptionNotFound, SnapshotNotFound, SchemaNotFound)):
        return rpc_error(missing(error.name))
    if isinstance(error, InvalidAckId):
        return RpcError(error.code, f"You have passed an invalid ack ID to the service (ack_id={error.ack_ids[0]}).")
    return rpc_error(error)


def missing(name: str) -> NotFound:
    """There is no resource of the name."""
    return NotFound(f"Resource not found (resource={leaf(name)}).")


def exists(name: str) -> AlreadyExists:
    """The name is taken."""
    return AlreadyExists(f"Resource already exists in the project (resource={leaf(name)}).")


def stale_ack_ids(ack_ids: Sequence[str]) -> RpcError:
    """The failure of an acknowledgement under exactly-once delivery; the other ids of the call were applied (1.8.2)."""
    info = ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com")
    if sum([len(ack_id) + 50 for ack_id in ack_ids]) <= ERROR_INFO_BYTES_MAX:
        info.metadata.update(dict.fromkeys(ack_ids, "PERMANENT_FAILURE_INVALID_ACK_ID"))
    return RpcError(
        INVALID_ARGUMENT,
        "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have "
        "expired or the acknowledgement ids were malformed.",
        [(ERROR_INFO_URL, info.SerializeToString())],
    )
