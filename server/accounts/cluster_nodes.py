"""The nodes of a Ray cluster that are used or were taken out of use, for a supervisor that is started again."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, select

from server.accounts.store import Store
from server.accounts.tables import ClusterNodeRow


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The admitted nodes of a cluster, and those of them that are drained, by Ray's node ids, which change with each
    start."""

    admitted: frozenset[str]
    drained: frozenset[str]


class ClusterNodeStore(Store):
    """The nodes of the one cluster that uses this database."""

    def read(self) -> ClusterNodes:
        """Return the admitted nodes, and those of them that are drained."""
        with self._database.read() as session:
            rows = session.scalars(select(ClusterNodeRow)).all()
            return ClusterNodes(frozenset(row.node for row in rows), frozenset(row.node for row in rows if row.drained))

    def admit(self, nodes: Collection[str]) -> None:
        """Let nodes be used from now on."""
        self._set(nodes, drained=False)

    def drain(self, nodes: Collection[str]) -> None:
        """Take nodes out of use."""
        self._set(nodes, drained=True)

    def keep(self, nodes: Collection[str]) -> None:
        """Delete all other nodes: a node that has ended never comes back under its id."""
        self._write(delete(ClusterNodeRow).where(ClusterNodeRow.node.not_in(nodes)))

    def _set(self, nodes: Collection[str], *, drained: bool) -> None:
        with self._database.write() as session:
            for node in nodes:
                session.merge(ClusterNodeRow(node=node, drained=drained))
