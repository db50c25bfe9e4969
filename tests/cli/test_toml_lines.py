from __future__ import annotations

import pytest

from heliograph.cli.toml_lines import line_of

TEXT = """\
top = 1
[server]
port = 8085
[[topics]]
name = "a"
[[topics]]
name = "b"
labels = { team = "sales", "tier"="gold" }
[[subscriptions]]
name = "s"
[subscriptions.retry_policy]
minimum_backoff = "1s"
[[subscriptions]]
push_config.push_endpoint = "http://localhost"
[subscriptions.retry_policy]
minimum_backoff = "2s"
"""


@pytest.mark.parametrize(
    ("table", "index", "key", "line"),
    [
        ("", 0, "top", 1),
        ("server", 0, "port", 3),
        ("server", 0, "", 2),
        ("topics", 0, "name", 5),
        ("topics", 1, "name", 7),
        ("topics", 1, "labels", 8),
        ("topics", 1, "labels.tier", 8),
        ("topics", 1, "nothing", 6),
        ("topics", 2, "", 0),
        ("subscriptions", 0, "retryPolicy.minimumBackoff", 12),
        ("subscriptions", 1, "retryPolicy.minimumBackoff", 16),
        ("subscriptions", 1, "retry_policy", 15),
        ("subscriptions", 1, "pushConfig.pushEndpoint", 14),
        ("queues", 0, "name", 0),
    ],
)
def test_a_key_is_found_in_its_table(table: str, index: int, key: str, line: int) -> None:
    assert line_of(TEXT, table, index, key) == line
