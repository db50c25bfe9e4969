"""The schemas of messages, from the broker or from files, kept beside the table so that they outlive the broker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from heliograph.errors import HeliographError, InvalidArgument, Unavailable
from heliograph.spark.pipeline.job import Place
from heliograph.spark.pipeline.parsing import Definition
from heliograph.spark.pipeline.table import quoted, write_whole
from heliograph.wire.schemas.schema import SchemaType, compile_schema

_LANGUAGES = {".avsc": SchemaType.AVRO, ".proto": SchemaType.PROTOCOL_BUFFER}


class _Kept(msgspec.Struct, frozen=True):
    name: str
    schema_type: str
    text: str = ""
    compiled: bytes = b""


_KEPT = msgspec.json.Decoder(_Kept)


class Definitions:
    """Schemas by topic and by revision.

    Args:
        place: where the broker is.
        directory: where they are kept.
        chosen: by topic, for messages that tell no schema; see `RefineOptions`.
        encoding: of these messages.

    Raises:
        InvalidArgument: a chosen one is no schema.
    """

    def __init__(self, place: Place, directory: Path, chosen: Mapping[str, str], encoding: str) -> None:
        if encoding not in ("JSON", "BINARY"):
            raise InvalidArgument(f"The encoding must be JSON or BINARY, not {encoding!r}")
        self._place = place
        self._directory = directory
        self._known: dict[str, Definition] = {}
        self.remarks: list[str] = []
        self._chosen = {topic: self._choose(wanted) for topic, wanted in chosen.items()}

    def of(self, topic: str, uses: Sequence[tuple[str, str]]) -> dict[str, Definition]:
        """Those for the messages of a topic, as `parsing.Parser` takes them.

        Args:
            topic: full name.
            uses: name and revision of the schemas that messages tell.
        """
        found = {f"{name}@{revision}": self._revision(name, revision) for name, revision in uses}
        if topic in self._chosen:
            found[""] = self._chosen[topic]
        return found

    def _choose(self, wanted: str) -> Definition:
        path = Path(wanted)
        language = _LANGUAGES.get(path.suffix)
        if language is not None:
            try:
                text = path.read_text()
            except OSError as error:
                raise InvalidArgument(f"The schema {wanted} cannot be read: {error.strerror}") from None
            return Definition(path.name, language.value, compile_schema(language, text))
        definition = self._revision(wanted, "")
        if not definition.readable:
            raise InvalidArgument(
                f"There is no schema {wanted} on the broker, and no file .avsc or .proto of this name"
            )
        return definition

    def _revision(self, name: str, revision: str) -> Definition:
        key = f"{name}@{revision}" if revision else name
        if key not in self._known:
            self._known[key] = self._kept(key) or self._fetched(key)
        return self._known[key]

    def _kept(self, key: str) -> Definition | None:
        try:
            kept = _KEPT.decode((self._directory / f"{quoted(key)}.json").read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return Definition(kept.name, kept.schema_type, kept.compiled or kept.text)

    def _fetched(self, key: str) -> Definition:
        try:
            answer: dict[str, Any] = self._place.door.get(f"/v1/{quote(key, safe='/@')}", {"view": "FULL"})
            language = SchemaType(answer["type"])
            compiled = compile_schema(language, answer["definition"])
        except Unavailable:
            raise
        except (HeliographError, KeyError, ValueError) as error:
            self.remarks.append(f"The schema {key} cannot be had ({error}); its messages are in the quarantine.")
            return Definition(key, SchemaType.AVRO.value, "")
        if "@" in key:  # without a revision it means another one tomorrow
            text, data = (compiled, b"") if isinstance(compiled, str) else ("", compiled)
            kept = _Kept(key, language.value, text, data)
            write_whole(self._directory / f"{quoted(key)}.json", msgspec.json.encode(kept))
        return Definition(key, language.value, compiled)
