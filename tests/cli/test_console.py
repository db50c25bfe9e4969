"""The console in a real browser: what a job of the pipeline does appears while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import HELIOGRAPH, Run, Start, environment
from tests.server.browser import CHROMIUM, Page, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

MESSAGES = 120
STATE = "document.querySelector('#job-archive .state')"
ROWS = "document.querySelector('#job-archive [data-head=Rows]')"


def figure(page: Page, expression: str) -> str:
    """What is written there, in one line."""
    return " ".join(page.value(f"{expression}.innerText").split())


def test_a_running_job_appears_on_a_page_that_is_open_and_a_broker_that_is_gone_is_told(
    serve: Start, heliograph: Run, tmp_path: Path
) -> None:
    server = serve("--data-dir", "data")
    url = f"http://127.0.0.1:{server.port}"
    heliograph("topic", "create", "flights", "--retention", "1d", "--server", url)
    (tmp_path / "messages").write_text("".join(json.dumps({"row": row}) + "\n" for row in range(MESSAGES)))
    with (tmp_path / "messages").open() as lines:
        subprocess.run(
            [*HELIOGRAPH, "publish", "flights", "-", "--server", url], env=environment(), stdin=lines, check=True
        )

    command = ("pipeline", "run", "archive", "--continuous", "--pause", "1s", "--master", "local[1]", "--server", url)
    with browser(tmp_path / "browser") as page:
        page.open(f"{url}/console")
        assert page.value("location.pathname") == "/console/pipeline"
        assert "No job of the data pipeline has reported" in page.value("document.body.innerText")
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen([*HELIOGRAPH, *command], cwd=tmp_path, env=environment(), stdout=log, stderr=log) as job,
        ):
            try:
                page.until(f"{STATE} !== null", seconds=120)
                page.until(f"{ROWS}.innerText.startsWith('{MESSAGES}')", seconds=120)
                assert figure(page, STATE) in ("▶ running", "◦ idle")
                page.until(f"{ROWS}.querySelector('svg polyline') !== null")
                page.until("document.querySelector('#job-archive [data-head=Lag]').innerText.startsWith('0')")
            finally:
                job.send_signal(signal.SIGINT)
                job.wait(60)
        page.until(f"{STATE}.innerText === '■ stopped'")
        assert page.messages == []

        server.stop(signal.SIGTERM)
        page.until("!document.getElementById('away').hidden")
        assert "No answer from the broker since" in page.value("document.body.innerText")
        assert figure(page, STATE) == "■ stopped"
        serve("--data-dir", "data", host_port=url.removeprefix("http://"))
        page.until("document.getElementById('away').hidden")
        assert figure(page, ROWS).startswith(f"{MESSAGES} last batch {MESSAGES}, ")
