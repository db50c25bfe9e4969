"""What doors keep durably and the engine does not understand: access policies, schemas, and the like."""

from __future__ import annotations

from heliograph.engine.facts import DocumentDeleted, DocumentPut, Fact


class Documents:
    """Values by collection and name."""

    __slots__ = ("_collections",)

    def __init__(self) -> None:
        self._collections: dict[str, dict[str, bytes]] = {}

    def get(self, collection: str, name: str) -> bytes | None:
        """The document, or None if there is none."""
        return self._collections.get(collection, {}).get(name)

    def listed(self, collection: str) -> list[tuple[str, bytes]]:
        """All documents of a collection, by name."""
        return sorted(self._collections.get(collection, {}).items())

    def put(self, fact: DocumentPut) -> None:
        """DocumentPut: in place of an earlier one of the name."""
        self._collections.setdefault(fact.collection, {})[fact.name] = fact.value

    def delete(self, fact: DocumentDeleted) -> None:
        """DocumentDeleted."""
        collection = self._collections[fact.collection]
        del collection[fact.name]
        if not collection:
            del self._collections[fact.collection]

    def clear(self) -> None:
        """CheckpointBegun."""
        self._collections.clear()

    def capture(self) -> list[Fact]:
        """The facts that recreate them."""
        return [
            DocumentPut(collection, name, value)
            for collection, documents in self._collections.items()
            for name, value in documents.items()
        ]
