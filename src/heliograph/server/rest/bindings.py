"""Which HTTP request means which gRPC method: the `google.api.http` options of Pub/Sub.

The official client carries its message classes without the services' descriptors, but with the bindings that its
generator read out of them, additional ones and those of the mixed-in IAMPolicy included. They are taken from there, so
that no route is written by hand and a newer client brings its new ones along.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple

from google.pubsub_v1.services.publisher.transports import rest_base as _publisher
from google.pubsub_v1.services.schema_service.transports import rest_base as _schema_service
from google.pubsub_v1.services.subscriber.transports import rest_base as _subscriber

_SERVICES: dict[str, ModuleType] = {
    "google.pubsub.v1.Publisher": _publisher,
    "google.pubsub.v1.Subscriber": _subscriber,
    "google.pubsub.v1.SchemaService": _schema_service,
}
_IAM_SERVICE = "google.iam.v1.IAMPolicy"
_IAM_METHODS = ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions")


class Binding(NamedTuple):
    """One HTTP form of one method.

    Args:
        http_method: upper case.
        template: of the path, as in the option: ``/v1/{topic=projects/*/topics/*}:publish``.
        body: which field of the request the body is: a name, "*" for all that the path does not bind, "" for none.
        method: full name of the gRPC method, ``/package.Service/Method``.
    """

    http_method: str
    template: str
    body: str
    method: str


def pubsub_bindings() -> list[Binding]:
    """Those of Publisher, Subscriber, SchemaService and IAMPolicy."""
    bindings: dict[Binding, None] = {}
    for service, module in _SERVICES.items():
        for name, options in _http_options(module):
            owner = _IAM_SERVICE if name in _IAM_METHODS else service
            for option in options:
                binding = Binding(option["method"].upper(), option["uri"], option.get("body", ""), f"/{owner}/{name}")
                bindings[binding] = None
    bindings |= {_posted(binding): None for binding in bindings if binding.method.endswith("/GetIamPolicy")}
    return list(bindings)


def _posted(binding: Binding) -> Binding:
    """IAMPolicy's own form of a method, which Pub/Sub's configuration puts another in place of. Some generated clients
    call it, Node's among them."""
    return binding._replace(http_method="POST", body="*")


def _http_options(module: ModuleType) -> list[tuple[str, list[dict[str, str]]]]:
    """Method name and options: each is a class `_BaseMethod` within the class of the service's transport."""
    found: list[tuple[str, Any]] = []
    for _, transport in inspect.getmembers(module, inspect.isclass):
        for name, method in inspect.getmembers(transport, inspect.isclass):
            if name.startswith("_Base") and hasattr(method, "_get_http_options"):
                found.append((name.removeprefix("_Base"), method._get_http_options()))
    return found
