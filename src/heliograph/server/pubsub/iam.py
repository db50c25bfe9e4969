"""The methods of `google.iam.v1.IAMPolicy` (protocol 1.16). Policies are kept and given back; nobody is denied
anything, since nobody is asked who they are."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from google.iam.v1 import iam_policy_pb2

from heliograph.broker.protocol import Broker
from heliograph.errors import InvalidArgument, NotFound
from heliograph.server.call import Call
from heliograph.server.grpc.status import ABORTED, RpcError
from heliograph.server.pubsub import names, policies
from heliograph.server.pubsub.policies import Policy
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.schema_store import SchemaStore
from heliograph.server.pubsub.texts import missing

VERSIONS = (0, 1, 3)

SetIamPolicyRequest: Any = iam_policy_pb2.SetIamPolicyRequest
GetIamPolicyRequest: Any = iam_policy_pb2.GetIamPolicyRequest
TestIamPermissionsRequest: Any = iam_policy_pb2.TestIamPermissionsRequest
TestIamPermissionsResponse: Any = iam_policy_pb2.TestIamPermissionsResponse


class IamPolicy:
    """See the module.

    Args:
        broker: keeps the policies.
        schemas: knows which schemas there are.
        profile: how strictly.
    """

    def __init__(self, broker: Broker, schemas: SchemaStore, profile: Profile = STRICT) -> None:
        self._broker = broker
        self._schemas = schemas
        self._profile = profile

    async def set_iam_policy(self, request: Any, _call: Call) -> bytes:
        """SetIamPolicy: kept, with a new etag; one that was read before another's change is refused."""
        self._check_exists(request.resource)
        current, wanted = policies.current(self._broker, request.resource), Policy()
        wanted.CopyFrom(request.policy)
        if wanted.etag and wanted.etag != current.etag:
            raise RpcError(
                ABORTED, "The policy was changed by somebody else meanwhile: read it again, and repeat the change."
            )
        if wanted.version not in VERSIONS:
            raise InvalidArgument(f"Invalid policy version given (version={wanted.version}).")
        if request.update_mask.paths:
            _keep_unmasked(wanted, current, request.update_mask.paths)
        wanted.etag = secrets.token_bytes(8)
        return await policies.keep(self._broker, request.resource, wanted)

    async def get_iam_policy(self, request: Any, _call: Call) -> bytes:
        """GetIamPolicy: an empty one where none was set."""
        self._check_exists(request.resource)
        policy: bytes = policies.current(self._broker, request.resource).SerializeToString(deterministic=True)
        return policy

    async def granted_permissions(self, request: Any, _call: Call) -> bytes:
        """TestIamPermissions: all that are asked for; none on what does not exist."""
        for permission in request.permissions:
            if not permission or "*" in permission:
                raise InvalidArgument(f"Invalid permission given (permission={permission}).")
        try:
            self._check_exists(request.resource)
        except NotFound:
            return b""
        response: bytes = TestIamPermissionsResponse(permissions=request.permissions).SerializeToString()
        return response

    def _check_exists(self, resource: str) -> None:
        """Raises: InvalidArgument, NotFound."""
        collection = names.collection(resource)
        self._profile.check_name(resource, collection)
        if collection == "topics":
            self._broker.get_topic(resource)
        elif collection == "subscriptions":
            self._broker.get_subscription(resource)
        elif collection == "snapshots":
            self._broker.get_snapshot(resource)
        elif collection != "schemas":
            raise names.invalid(resource)
        elif not self._schemas.exists(resource):
            raise missing(resource)


def _keep_unmasked(wanted: Any, current: Any, paths: Collection[str]) -> None:
    for field in ("bindings", "version", "audit_configs"):
        if field not in paths:
            wanted.ClearField(field)
            wanted.MergeFrom(Policy(**{field: getattr(current, field)}))
