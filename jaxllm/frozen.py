"""``FrozenMapping``: a mapping that nobody can change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class FrozenMapping[Key, Value](Mapping[Key, Value]):
    """A copy of a mapping; hashable if its values are, can be copied and pickled."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[Key, Value]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, key: Key) -> Value:
        return self._entries[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return repr(self._entries)
