"""`heliograph schema …`."""

from __future__ import annotations

import base64
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.cli.show import AsJson, print_json, print_table
from heliograph.cli.target import Target, on_broker

schema_app = typer.Typer(
    help="Schemas that messages must follow: create, list, describe, commit, validate, delete.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="SCHEMA", help="Its id, or its full name projects/P/schemas/S.")]


class SchemaType(StrEnum):
    """The languages of schemas."""

    AVRO = "avro"
    PROTOBUF = "protobuf"


class Encoding(StrEnum):
    """How messages are encoded."""

    JSON = "json"
    BINARY = "binary"


Definition = Annotated[
    Path, typer.Option("--definition", exists=True, dir_okay=False, metavar="FILE", help="File with the definition.")
]
OfType = Annotated[SchemaType, typer.Option("--type", help="Its language.")]


@schema_app.command("create")
@on_broker
def create(target: Target, name: Name, type_: OfType, definition: Definition, as_json: AsJson = False) -> None:
    """Create a schema.

    Example: heliograph schema create order --type avro --definition order.avsc
    """
    with target as door:
        full = door.name("schemas", name)
        parent, _, schema_id = full.partition("/schemas/")
        made = door.rest("POST", f"{parent}/schemas", _schema(full, type_, definition), schemaId=schema_id)
        if as_json:
            print_json(made)
        else:
            print(f"Created {made['name']}, revision {made['revisionId']}")


@schema_app.command("commit")
@on_broker
def commit(target: Target, name: Name, type_: OfType, definition: Definition, as_json: AsJson = False) -> None:
    """Add a revision to a schema.

    Example: heliograph schema commit order --type avro --definition order-2.avsc
    """
    with target as door:
        full = door.name("schemas", name)
        made = door.rest("POST", f"{full}:commit", {"schema": _schema(full, type_, definition)})
        if as_json:
            print_json(made)
        else:
            print(f"Revision {made['revisionId']} of {full}")


@schema_app.command("list")
@on_broker
def list_schemas(target: Target, as_json: AsJson = False) -> None:
    """List the project's schemas.

    Example: heliograph schema list
    """
    with target as door:
        found = door.every(f"projects/{door.project}/schemas", "schemas")
        if as_json:
            print_json(found)
        else:
            print_table(
                ("schema", "revision", "type"), [(s["name"], s.get("revisionId", "-"), s["type"]) for s in found]
            )


@schema_app.command("describe")
@on_broker
def describe(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show a schema with its definition; NAME@REVISION shows that revision.

    Example: heliograph schema describe order
    """
    with target as door:
        found = door.rest("GET", door.name("schemas", name))
        if as_json:
            print_json(found)
        else:
            print(f"{found['name']}  {found['type']}  revision {found['revisionId']}  {found['revisionCreateTime']}")
            print(found.get("definition", ""))


@schema_app.command("validate")
@on_broker
def validate(
    target: Target,
    name: Name,
    message: Annotated[Path, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="File with the message.")],
    encoding: Annotated[Encoding, typer.Option(help="How it is encoded.")] = Encoding.JSON,
) -> None:
    """Check a message against a schema. Exit code 1 if it does not follow it.

    Example: heliograph schema validate order --message order.json
    """
    with target as door:
        full = door.name("schemas", name)
        parent = full.partition("/schemas/")[0]
        body = {
            "name": full,
            "message": base64.b64encode(message.read_bytes()).decode(),
            "encoding": encoding.value.upper(),
        }
        door.rest("POST", f"{parent}/schemas:validateMessage", body)
        print(f"{message} follows {full}")


@schema_app.command("delete")
@on_broker
def delete(target: Target, name: Name) -> None:
    """Delete a schema with all its revisions.

    Example: heliograph schema delete order
    """
    with target as door:
        full = door.name("schemas", name)
        door.rest("DELETE", full)
        print(f"Deleted {full}")


def _schema(full: str, type_: SchemaType, definition: Path) -> dict[str, Any]:
    named = {SchemaType.AVRO: "AVRO", SchemaType.PROTOBUF: "PROTOCOL_BUFFER"}
    return {"name": full, "type": named[type_], "definition": definition.read_text()}
