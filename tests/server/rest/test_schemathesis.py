"""Whatever is sent to the REST door, the broker does not fail on it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.server.app import Serving
from tests.server.clients import Http

SECONDS_MAX = 300
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "unsupported_method,allow_header_conformance"
)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS_MAX)
@pytest.mark.skipif(not importlib.util.find_spec("schemathesis"), reason="schemathesis is not installed")
def test_nothing_that_schemathesis_makes_of_the_description_is_a_server_error(server: Serving, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.port}/openapi/pubsub.json"
    command = (sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", CHECKS, "--max-examples", "5")
    options = ("--phases", "coverage,fuzzing,stateful", "--seed", "1", "--request-timeout", "20", "--warnings", "off")
    ran = subprocess.run(
        [*command, *options, "--no-color"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    assert Http(server.port).request("GET", "/healthz").status == 200
