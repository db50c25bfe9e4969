"""The broker behind a client object: one that is given, one of its own, or that of a server."""

from __future__ import annotations

import os

from heliograph.broker.broker import LocalBroker
from heliograph.broker.protocol import Broker
from heliograph.client.arguments import broker_of
from heliograph.errors import InvalidArgument


def backing(
    broker: Broker | None, data_dir: str | os.PathLike[str] | None, url: str | None
) -> tuple[Broker, Broker | None]:
    """The broker, and once more if it is the object's own, to be closed with it.

    Args:
        broker: it is given.
        data_dir: one of its own that keeps everything there.
        url: the broker of the server there. With none of the three: one of its own, in memory.

    Raises:
        InvalidArgument: more than one of them, or not what is wanted.
        StoreRefused: `data_dir` cannot be used; it is left untouched.
        FailedPrecondition: the extra `client` is not installed.
    """
    if sum(choice is not None for choice in (broker, data_dir, url)) > 1:
        raise InvalidArgument("One of broker, data_dir and url, not several: each is a broker")
    if broker is not None:
        return broker_of(broker), None
    own = remote(url) if url is not None else LocalBroker() if data_dir is None else LocalBroker.open(data_dir)
    return own, own


def remote(url: str) -> Broker:
    """The broker of a server. What a connection needs is imported here, by those who need it."""
    from heliograph.remote.broker import remote_broker

    return remote_broker(url)
