"""Push subscriptions (pubsub-protocol.md 1.13): the server delivers their messages itself, by HTTP.

`service.py` knows which subscriptions are pushed, `pusher.py` serves one of them, `pace.py` says how many requests and
when, `envelope.py` what is in a request, `endpoint.py` sends it, `tokens.py` signs for it.
"""

ISSUER = "https://accounts.google.com"
"""Whom tokens of pushes name as their issuer: endpoints compare it with Google's."""
