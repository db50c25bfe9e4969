"""`heliograph.toml`, and what the environment asks for."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import typer

from heliograph.broker.broker import LocalBroker
from heliograph.cli.config import ConfigFile, read_config
from heliograph.cli.failure import ExitCode, Failure
from heliograph.cli.projects import entries_of_environment
from heliograph.cli.serving_options import Given, ServingOptions, StoreKind, parse_host_port
from heliograph.server.app import Application
from heliograph.server.closing import Closing
from heliograph.server.initial import Initial, Wanted

DOCS = Path(__file__).parents[2] / "docs"


def config(text: str) -> ConfigFile:
    return ConfigFile(Path("heliograph.toml"), text)


def mistake(text: str) -> str:
    """What is told of a file with a mistake."""
    with pytest.raises(Failure) as caught:
        ServingOptions(Given(), config(text))
    assert caught.value.exit_code == ExitCode.USAGE
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server", "heliograph.toml: it is not TOML: Expected ']' at the end of a table declaration"),
        ("\nx = 1", "heliograph.toml:2: unknown key x; known are queues, schemas, server, subscriptions, topics"),
        ("[[topic]]\nname = 'a'", "heliograph.toml:1: unknown key topic: did you mean topics?"),
        ("server = 1", "heliograph.toml:1: server must be a table: write [server]"),
        ("[topics]\nname = 'a'", "heliograph.toml:1: topics must be tables: write [[topics]] over each"),
        ("queues = ['a']", "heliograph.toml:1: queues must be tables: write [[queues]] over each"),
        ("[server]\n\nprot = 1", "heliograph.toml:3: unknown key prot under [server]: did you mean port?"),
        ("[server]\nport = '1'", "heliograph.toml:2: server.port: Expected `int | null`, got `str`"),
        ("[server]\nport = 70000", "heliograph.toml:2: server.port: Expected `int` <= 65535"),
        ("[server]\nstore = 'tape'", "heliograph.toml:2: server.store: Invalid enum value 'tape'"),
        ("[server]\nallowed_hosts = [1]", "heliograph.toml:2: server.allowed_hosts: Expected `str`, got `int`"),
        ("[server]\nmemory_budget = 'big'", "heliograph.toml:2: server.memory_budget: 'big' is not a size"),
        ("[server]\nevent_retention = 'x'", "heliograph.toml:2: server.event_retention: 'x' is no span of time"),
        ("[server]\nhost_port = '::1:80'", "heliograph.toml:2: server.host_port: '::1:80' is not HOST:PORT"),
        ("[server]\nhost_port = ':1'\nport = 1", "heliograph.toml:2: server.host_port stands for host and port"),
        ("[[schemas]]\ndefinition_file = 'no.avsc'", "heliograph.toml:2: schemas[0]: no.avsc: No such file"),
        ("[[schemas]]\ndefinition_file = 'a'\ndefinition = 'b'", "heliograph.toml:2: schemas[0]: definition_file must"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_its_own_exit_code(text: str, told: str) -> None:
    assert mistake(text).startswith(told)
    assert "\n" not in mistake(text)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"no\.toml: No such file or directory") as caught:
        read_config(tmp_path / "no.toml")
    assert caught.value.exit_code == ExitCode.USAGE
    (tmp_path / "latin.toml").write_bytes(b"# \xe4")
    with pytest.raises(Failure, match="it is not UTF-8"):
        read_config(tmp_path / "latin.toml")


def test_the_file_in_the_current_directory_is_read_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_config(None).path is None
    (tmp_path / "heliograph.toml").write_text("[server]\nport = 7")
    assert read_config(None).server.port == 7


def test_the_command_line_outranks_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = ConfigFile(
        tmp_path / "heliograph.toml",
        """
        [server]
        host = "0.0.0.0"
        port = 7
        data_dir = "data"
        durability = "none"
        memory_budget = "64MB"
        event_retention = "0"
        project = "p"
        lenient = true
        allowed_hosts = ["broker"]
        """,
    )
    options = ServingOptions(Given(), file)
    assert (options.host, options.port, options.data_dir) == ("0.0.0.0", 7, tmp_path / "data")
    assert (options.durability, options.memory_budget_bytes, options.event_retention_ns) == ("none", 64 * 2**20, 0)
    assert (options.project, options.lenient, options.allowed_hosts) == ("p", True, ("broker",))
    given = Given(host="::1", port=8, data_dir=Path("/else"), event_retention_ns=5)
    options = ServingOptions(given, file, project="q", allowed_hosts=["x"])
    assert (options.host, options.port, options.data_dir) == ("::1", 8, Path("/else"))
    assert (options.project, options.event_retention_ns, options.allowed_hosts) == ("q", 5, ("x", "broker"))
    defaults = ServingOptions(Given(), ConfigFile(None))
    assert (defaults.host, defaults.port, defaults.store, defaults.durability) == ("localhost", 8085, "sqlite", "full")
    assert (defaults.data_dir, defaults.lenient) == (Path("heliograph-data").absolute(), False)


def test_a_memory_store_on_the_command_line_needs_no_file_of_the_configuration() -> None:
    options = ServingOptions(Given(store=StoreKind.MEMORY), config("[server]\ndata_dir = 'data'"))
    assert options.store is StoreKind.MEMORY


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8085", ("localhost", 8085)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:8085", ("::1", 8085)),
        ("[::]:65535", ("::", 65535)),
        (":8085", ("localhost", 8085)),
    ],
)
def test_the_emulators_form_of_an_address_is_taken(text: str, address: tuple[str, int]) -> None:
    assert parse_host_port(text) == address
    options = ServingOptions(Given(host_port=text), config("[server]\nhost = 'x'"))
    assert (options.host, options.port) == address


@pytest.mark.parametrize("text", ["", "localhost", "8085", "localhost:", "localhost:x", "::1:8085", "a:65536", "a:²"])
def test_what_is_no_address_with_a_port_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not HOST:PORT"):
        parse_host_port(text)


def test_both_forms_of_the_address_at_once_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="one or the other"):
        ServingOptions(Given(host_port="a:1", port=2), ConfigFile(None))


def test_instants_of_toml_are_written_as_in_json() -> None:
    text = "[[topics]]\nwhen = 2020-01-01T00:00:00Z\nnested = { days = [2020-01-01] }"
    document = config(text).entries[0].document
    assert document == {"when": "2020-01-01T00:00:00+00:00", "nested": {"days": ["2020-01-01"]}}


def test_the_environment_names_projects_with_topics_and_their_subscriptions() -> None:
    environment = {
        "PUBSUB_PROJECT1": "shop,orders:billing:mail, failed",
        "PUBSUB_PROJECT2": "other",
        "PUBSUB_PROJECT4": "after-a-gap,topic",
    }
    entries = [(entry.kind, entry.place, entry.document) for entry in entries_of_environment(environment)]
    topic = "projects/shop/topics/orders"
    assert entries == [
        ("topics", "PUBSUB_PROJECT1", {"name": topic}),
        ("subscriptions", "PUBSUB_PROJECT1", {"name": "projects/shop/subscriptions/billing", "topic": topic}),
        ("subscriptions", "PUBSUB_PROJECT1", {"name": "projects/shop/subscriptions/mail", "topic": topic}),
        ("topics", "PUBSUB_PROJECT1", {"name": "projects/shop/topics/failed"}),
    ]


@pytest.mark.parametrize("value", [",topic", "topic:sub", "projects/p,topic", "p,,", "p,topic:", "p,:sub"])
def test_an_environment_of_another_form_is_one_line(value: str) -> None:
    with pytest.raises(Failure, match=r"^PUBSUB_PROJECT1: ") as caught:
        list(entries_of_environment({"PUBSUB_PROJECT1": value}))
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_example_of_the_documentation_is_taken_as_it_stands(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.+?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "order.avsc").write_text('{"type": "record", "name": "Order", "fields": []}')
    file = ConfigFile(tmp_path / "heliograph.toml", found[1])
    options = ServingOptions(Given(), file)
    told: list[str] = []
    initial = Initial([Wanted(*entry) for entry in file.entries], options.project, told.append)
    broker = LocalBroker()
    asyncio.run(initial.establish(broker, Application(broker, Closing()).methods))
    assert [info.name for info in broker.list_subscriptions()] == [
        "projects/shop/subscriptions/billing",
        "queues/thumbnails",
    ]
    assert (options.host, told) == ("0.0.0.0", [])
