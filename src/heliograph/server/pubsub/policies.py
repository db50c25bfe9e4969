"""Where IAM policies are kept (`iam.py`): with the broker's documents, by the name of the resource they are of."""

from __future__ import annotations

from typing import Any

from google.iam.v1 import policy_pb2

from heliograph.broker.protocol import Broker
from heliograph.broker.reply import Reply

COLLECTION = "iam"

UNSET_ETAG = b"\x00\x20\x01"
"""Of a policy that was never set; "ACAB" in JSON."""

Policy: Any = policy_pb2.Policy


def current(broker: Broker, resource: str) -> Any:
    """The policy of a resource; an empty one where none was set."""
    kept = broker.get_document(COLLECTION, resource)
    return Policy(etag=UNSET_ETAG) if kept is None else Policy.FromString(kept)


async def keep(broker: Broker, resource: str, policy: Any) -> bytes:
    """Keep a policy; returns it serialized when it is durable."""
    kept: bytes = policy.SerializeToString(deterministic=True)
    await broker.put_document(COLLECTION, resource, kept)
    return kept


def forget(broker: Broker, resource: str) -> Reply[None]:
    """The resource is gone, or is new: it has no policy. To be called before anything is awaited, so that nobody sees
    the one without the other. (New ones too, since a resource may go without a door: subscriptions expire.)"""
    return broker.delete_document(COLLECTION, resource)
