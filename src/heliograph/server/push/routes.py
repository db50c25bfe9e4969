"""What of push subscriptions is served over HTTP: the public keys for endpoints."""

from __future__ import annotations

from typing import Any

from heliograph.broker.protocol import Broker
from heliograph.server.http import answer_json
from heliograph.server.push import ISSUER
from heliograph.server.push.service import Pushing
from heliograph.server.routing import Receive, Route, Scope, Send

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/oauth2/v3/certs"
CERTIFICATES = "/oauth2/v1/certs"


def push_routes(pushing: Pushing) -> list[Route]:
    """The routes.

    Args:
        pushing: who pushes.
    """

    async def discovery(scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """Where the keys are, in the form of OpenID Connect. The issuer is what tokens say, not this address."""
        host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
        document: dict[str, Any] = {
            "issuer": ISSUER,
            "jwks_uri": f"{scope.get('scheme') or 'http'}://{host}{KEYS}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        await answer_json(send, document)

    async def keys(_scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """The keys that tokens of pushes are signed with (1.13.5), as a JSON Web Key Set."""
        await answer_json(send, await (await pushing.tokens()).public_keys())

    async def certificates(_scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """The same as X.509 certificates by key id."""
        await answer_json(send, await (await pushing.tokens()).certificates())

    return [
        Route("GET", DISCOVERY, discovery),
        Route("GET", KEYS, keys),
        Route("GET", CERTIFICATES, certificates),
    ]
