"""Which names a request may reach the broker by (DNS rebinding)."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from heliograph.server.app import Serving
from heliograph.server.hosts import ForeignHost, Hosts
from tests.server.clients import Http


def scope(host: str, **headers: str) -> dict[str, Any]:
    named = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    return {"headers": [(name.encode(), value.encode()) for name, value in named.items()]}


OURS = ["localhost", "localhost:8085", "LOCALHOST", "app.localhost:1", "127.0.0.1", "127.0.0.1:8085", "[::1]:8085"]


@pytest.mark.parametrize("host", [*OURS, "[::1]", "10.1.2.3:8085", socket.gethostname(), "allowed.example:8085"])
@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])
def test_addresses_localhost_and_names_of_its_own_are_the_brokers(listens_on: str, host: str) -> None:
    Hosts(listens_on, ["Allowed.example"]).check(scope(host, origin=f"http://{host}"))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8085", "127.0.0.1.evil.example", "localhost.evil", ""])
@pytest.mark.parametrize("listens_on", ["127.0.0.1", "localhost", "::1", "0.0.0.0", "broker.example"])
def test_a_browser_that_came_by_another_name_is_refused(listens_on: str, host: str) -> None:
    hosts = Hosts(listens_on)
    if host:
        for headers in ({"origin": f"http://{host}"}, {"sec_fetch_site": "same-origin"}):
            with pytest.raises(ForeignHost):
                hosts.check(scope(host, **headers))
    else:
        hosts.check({"headers": []})  # HTTP/1.0: no browser


@pytest.mark.parametrize(("listens_on", "refused"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_without_a_browsers_headers_another_name_is_refused_on_loopback_alone(listens_on: str, refused: bool) -> None:
    hosts = Hosts(listens_on)
    if refused:
        with pytest.raises(ForeignHost):
            hosts.check(scope("heliograph:8085"))
    else:
        hosts.check(scope("heliograph:8085"))


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/v1/command"), ("GET", "/queue/list")])
def test_a_page_that_was_pointed_at_this_machine_gets_nothing(
    server: Serving, http: Http, method: str, path: str
) -> None:
    headers = {"Host": f"evil.example:{server.port}", "Origin": f"http://evil.example:{server.port}"}
    answer = http.request(method, path, b"{}" if method == "POST" else None, headers)
    assert (answer.status, answer.body["code"]) == (403, "ForeignHost")
