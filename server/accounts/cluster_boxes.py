"""The boxes of a Ray cluster that are used or were taken out of use, for a supervisor that is started again."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, select

from server.accounts.store import Store
from server.accounts.tables import ClusterBoxRow


@dataclass(frozen=True, slots=True)
class KnownBoxes:
    """The boxes that were used, by Ray's ids of nodes, which are others after each start. A drained box was admitted
    before."""

    admitted: frozenset[str]
    drained: frozenset[str]


class ClusterBoxStore(Store):
    """The boxes of the one cluster that uses this database."""

    def read(self) -> KnownBoxes:
        """Return the boxes that are used, and those of them that were taken out of use."""
        with self._database.read() as session:
            rows = session.scalars(select(ClusterBoxRow)).all()
            return KnownBoxes(frozenset(row.node for row in rows), frozenset(row.node for row in rows if row.drained))

    def admit(self, nodes: Collection[str]) -> None:
        """Let boxes be used from now on."""
        self._set(nodes, drained=False)

    def drain(self, nodes: Collection[str]) -> None:
        """Take boxes out of use."""
        self._set(nodes, drained=True)

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all other boxes: a node that has ended never comes back under its id."""
        self._write(delete(ClusterBoxRow).where(ClusterBoxRow.node.not_in(nodes)))

    def _set(self, nodes: Collection[str], *, drained: bool) -> None:
        with self._database.write() as session:
            for node in nodes:
                session.merge(ClusterBoxRow(node=node, drained=drained))
