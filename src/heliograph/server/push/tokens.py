"""Tokens that authenticate pushes (1.13.5): OpenID Connect, signed with a key of the broker's own.

The key is made when it is first needed, and kept as a document, so that an endpoint that has fetched the public part
still trusts the broker after a restart. Tokens look as the real service's do, with its issuer, since endpoints check
that; only the public keys are elsewhere.

Nothing imports this before a token is needed, for the time that loading the libraries takes.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from joserfc import jwt
from joserfc.jwk import RSAKey

from heliograph.broker.protocol import Broker
from heliograph.engine.settings import SECOND_NS
from heliograph.server.push import ISSUER

LIFE_SECONDS = 3_600
RENEW_SECONDS = 300
"""A token is replaced so long before its end."""

COLLECTION, DOCUMENT = "push", "signing-key"
KEY_BITS = 2_048
TOKENS_MAX = 1_000


class Tokens:
    """Event loop thread only.

    Args:
        broker: who keeps the key, and says what time it is.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._key: RSAKey | None = None
        self._making = asyncio.Lock()
        self._tokens: dict[tuple[str, str], tuple[int, str]] = {}

    async def token(self, email: str, audience: str) -> str:
        """A token for a service account and an audience, valid for five minutes at least."""
        now_seconds = self._broker.now_ns() // SECOND_NS
        ends, token = self._tokens.get((email, audience), (0, ""))
        if ends - RENEW_SECONDS > now_seconds:
            return token
        key = await self._signing_key()
        ends = now_seconds + LIFE_SECONDS
        subject = str(int.from_bytes(hashlib.sha256(email.encode()).digest()[:8], "big"))
        claims = {
            "aud": audience,
            "azp": subject,
            "email": email,
            "email_verified": True,
            "exp": ends,
            "iat": now_seconds,
            "iss": ISSUER,
            "sub": subject,
        }
        token = jwt.encode({"alg": "RS256", "kid": key.thumbprint(), "typ": "JWT"}, claims, key)
        if len(self._tokens) >= TOKENS_MAX:
            self._tokens.clear()
        self._tokens[email, audience] = ends, token
        return token

    async def public_keys(self) -> dict[str, Any]:
        """The key set (JWKS) that tokens can be verified with."""
        key = await self._signing_key()
        return {"keys": [key.as_dict(private=False) | {"kid": key.thumbprint(), "use": "sig", "alg": "RS256"}]}

    async def certificates(self) -> dict[str, str]:
        """The same key for those who want X.509 certificates (PEM) by key id, as the real service's `v1` has them."""
        key = await self._signing_key()
        return {key.thumbprint(): await asyncio.to_thread(_certificate, key)}

    async def _signing_key(self) -> RSAKey:
        async with self._making:
            if self._key is None:
                kept = self._broker.get_document(COLLECTION, DOCUMENT)
                if kept is None:
                    made = await asyncio.to_thread(RSAKey.generate_key, KEY_BITS)
                    kept = msgspec.json.encode(made.as_dict(private=True))
                    await self._broker.put_document(COLLECTION, DOCUMENT, kept)
                self._key = RSAKey.import_key(msgspec.json.decode(kept))
            return self._key


def _certificate(key: RSAKey) -> str:
    """A certificate that the key signs for itself. It is the same whenever it is made."""
    private_key = key.private_key
    assert private_key is not None
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "heliograph push")])
    serial = int.from_bytes(hashlib.sha256(key.thumbprint().encode()).digest()[:16], "big") or 1
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key)
        .serial_number(serial)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
    )
    return builder.sign(private_key, SHA256()).public_bytes(Encoding.PEM).decode()
