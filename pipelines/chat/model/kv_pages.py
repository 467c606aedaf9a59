"""Which pages of the KV cache belong to whom: to a sequence that runs, or to a beginning that others may share. Pure.

A page has PAGE tokens. Once a sequence has filled one, it becomes a node of a tree, whose path from the root are the
tokens up to there: a sequence that begins alike takes the same pages, and computes only what comes after them. Tokens
are compared themselves, not their hashes. Each `scope` has a tree of its own, so that nobody finds out by time what
others have asked. Pages that nobody uses stay until they are needed, and the longest unused go first.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

PAGE: Final = 32  # tokens


@dataclass(slots=True, eq=False)
class Node:
    """A page that was filled, in the tree of cached prefixes: its parents are the pages before it."""

    page: int
    parent: "Node | None"
    key: Hashable  # in its parent's children: the page's tokens; of a root: its scope
    children: dict[Hashable, "Node"] = field(default_factory=dict)
    users: int = 0


@dataclass(slots=True, eq=False)
class Lease:
    """The pages of one sequence, in the order of its tokens. The first `len(nodes)` of them are shared."""

    scope: Hashable = None
    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def slot(self, position: int) -> int:
        """Return where the token at this position is, in tokens from the beginning of the buffers."""
        return self.pages[position // PAGE] * PAGE + position % PAGE


class Pages:
    """The allocator of pages 0 to `limit` - 1."""

    def __init__(self, limit: int) -> None:
        self._roots: dict[Hashable, Node] = {}
        self._free: list[int] = []  # a heap: low numbers first, so that the buffers stay small
        self._idle: dict[Node, None] = {}  # nodes that nobody uses, the longest unused first, children before parents
        self._made = 0  # pages that were ever used
        self.limit = limit

    @property
    def used(self) -> int:
        """Return how many pages sequences have now."""
        return self._made - len(self._free) - len(self._idle)

    @property
    def required_pages(self) -> int:
        """Return how many pages the buffers need room for."""
        return self._made

    def match(self, scope: Hashable, tokens: Sequence[int]) -> Lease:
        """Return the pages that hold the beginning of `tokens`. The last token is left out: its logits are needed."""
        lease = Lease(scope)
        node = self._roots.get(scope)
        for start in range(0, (len(tokens) - 1) // PAGE * PAGE, PAGE):
            node = node.children.get(tuple(tokens[start : start + PAGE])) if node else None
            if node is None:
                break
            self._use(node)
            lease.nodes.append(node)
            lease.pages.append(node.page)
        return lease

    def extend(self, lease: Lease, tokens: int) -> bool:
        """Give a lease the pages for so many tokens; False, and nothing, if there are not enough."""
        missing = -(-tokens // PAGE) - len(lease.pages)
        if missing > len(self._free) + len(self._idle) + max(0, self.limit - self._made):
            return False
        lease.pages += [self._take() for _ in range(missing)]
        return True

    def share(self, lease: Lease, tokens: Sequence[int], cached: int) -> None:
        """Let others use the pages that the first `cached` of its tokens have filled."""
        for index in range(len(lease.nodes), cached // PAGE):
            parent = lease.nodes[-1] if lease.nodes else self._root(lease.scope)
            key = tuple(tokens[index * PAGE : (index + 1) * PAGE])
            node = parent.children.get(key)
            if node is None:
                node = parent.children[key] = Node(lease.pages[index], parent, key)
            else:  # another sequence has computed the same meanwhile
                heapq.heappush(self._free, lease.pages[index])
                lease.pages[index] = node.page
            self._use(node)
            lease.nodes.append(node)

    def release(self, lease: Lease) -> None:
        """Free the pages of a sequence. Those that are shared keep their contents for later sequences."""
        for page in lease.pages[len(lease.nodes) :]:
            heapq.heappush(self._free, page)
        for node in reversed(lease.nodes):
            node.users -= 1
            if not node.users:
                self._idle[node] = None
        lease.pages, lease.nodes = [], []

    def free_pages_from(self, count: int, lease: Lease) -> None:
        """Free the pages from number `count` on, as if they had never been used. Only this lease may have any of
        them."""
        lease.pages = [page for page in lease.pages if page < count]
        self._made = count

    def clear(self) -> None:
        """Drop every page. Call it while no sequence has any."""
        self._roots.clear()
        self._idle.clear()
        self._free.clear()
        self._made = 0

    def _take(self) -> int:
        if not self._free and self._made < self.limit:
            self._made += 1
            return self._made - 1
        if not self._free:
            self._drop(next(iter(self._idle)))
        return heapq.heappop(self._free)

    def _drop(self, node: Node) -> None:
        del self._idle[node]
        if node.parent is not None:
            del node.parent.children[node.key]
            if node.parent.parent is None and not node.parent.children:
                del self._roots[node.parent.key]
        heapq.heappush(self._free, node.page)

    def _root(self, scope: Hashable) -> Node:
        return self._roots.setdefault(scope, Node(-1, None, scope))

    def _use(self, node: Node) -> None:
        node.users += 1
        self._idle.pop(node, None)


def contiguous(pages: Iterable[int]) -> bool:
    """Return whether pages follow each other."""
    return all(after == page + 1 for page, after in pairwise(pages))
