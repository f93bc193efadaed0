"""The packet replication engine's tables as P4 Studio's driver keeps them: nodes, trees, pruning. No I/O.

What is refused, and with which code, is what the driver refuses: a node in two trees, arrays of different lengths, a node that
is not there. A deleted node leaves its tree, and a node keeps the RID that it was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shunt_softswitch.entries import BfrtError, Code

PORTS = 512  # $DEV_PORT has nine bits
L2_XIDS = 288  # of a Tofino 1
MAX_NODES = 1 << 24
MAX_TREES = 1 << 16


@dataclass(slots=True)
class Node:
    """An L1 node: at most one copy, with this RID. xid: the L1 XID if it is valid."""

    rid: int
    port: int | None
    mgid: int | None = None
    xid: int | None = None


Members = list[tuple[int, int | None]]  # node id, L1 XID if valid
Undo = Callable[[], None]


class Engine:
    """Nodes, trees and prune sets. Every change returns what takes it back; all raise BfrtError and then change nothing."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self.max_nodes = max_nodes
        self.nodes: dict[int, Node] = {}
        self.trees: dict[int, dict[int, None]] = {}
        self.prunes: dict[int, frozenset[int]] = {}

    # Nodes

    def add_node(self, number: int, rid: int, ports: list[int], lags: list[int]) -> Undo:
        """INSERT into `$pre.node`."""
        if number in self.nodes:
            raise BfrtError(Code.EXISTS, f"Error in adding PRE node id {number}; table:$pre.node")
        port = _one_port(ports, lags)
        if len(self.nodes) >= self.max_nodes:
            raise BfrtError(Code.NO_SPACE, f"There is room for {self.max_nodes} nodes; table:$pre.node")
        self.nodes[number] = Node(rid, port)
        return lambda: self._forget(number)

    def modify_node(self, number: int, rid: int | None, ports: list[int], lags: list[int]) -> Undo:
        """MODIFY of `$pre.node`: its port."""
        node = self._node(number)
        if rid is not None and rid != node.rid:
            raise BfrtError(Code.INVALID, f"The RID of node {number} is {node.rid} for as long as it exists; table:$pre.node")
        old, node.port = node.port, _one_port(ports, lags)

        def undo() -> None:
            node.port = old

        return undo

    def delete_node(self, number: int) -> Undo:
        """DELETE from `$pre.node`; a node in a tree leaves it."""
        node = self._node(number)
        members = list(self.trees[node.mgid]) if node.mgid is not None else []
        self._forget(number)

        def undo() -> None:
            self.nodes[number] = node
            if node.mgid is not None:
                self.trees[node.mgid] = dict.fromkeys(members)

        return undo

    def _node(self, number: int) -> Node:
        node = self.nodes.get(number)
        if node is None:
            raise BfrtError(Code.NOT_FOUND, f"There is no node {number}; table:$pre.node")
        return node

    def _forget(self, number: int) -> None:
        node = self.nodes.pop(number)
        if node.mgid is not None:
            self.trees[node.mgid].pop(number, None)

    # Trees

    def add_tree(self, mgid: int, members: Members) -> Undo:
        """INSERT into `$pre.mgid`."""
        if mgid in self.trees:
            raise BfrtError(Code.EXISTS, f"Error in adding PRE MGID {mgid}; table:$pre.mgid")
        self._check(mgid, members)
        self.trees[mgid] = {}
        self._fill(mgid, members)
        return lambda: self._drop(mgid)

    def modify_tree(self, mgid: int, members: Members) -> Undo:
        """MODIFY of `$pre.mgid`: all of its members anew."""
        old = self.members(mgid)
        self._check(mgid, members)
        self._empty(mgid)
        self._fill(mgid, members)

        def undo() -> None:
            self._empty(mgid)
            self._fill(mgid, old)

        return undo

    def delete_tree(self, mgid: int) -> Undo:
        """DELETE from `$pre.mgid`; its nodes stay."""
        old = self.members(mgid)
        self._drop(mgid)

        def undo() -> None:
            self.trees[mgid] = {}
            self._fill(mgid, old)

        return undo

    def members(self, mgid: int) -> Members:
        """The nodes of a tree with their L1 XIDs. Raises BfrtError."""
        tree = self.trees.get(mgid)
        if tree is None:
            raise BfrtError(Code.NOT_FOUND, f"There is no MGID {mgid}; table:$pre.mgid")
        return [(number, self.nodes[number].xid) for number in tree]

    def _check(self, mgid: int, members: Members) -> None:
        seen: set[int] = set()
        for number, _ in members:
            node = self.nodes.get(number)
            if node is None:
                raise BfrtError(Code.NOT_FOUND, f"Error in getting node handle for node id {number} of MGID {mgid}; table:$pre.mgid")
            if number in seen or node.mgid not in (None, mgid):
                raise BfrtError(Code.EXISTS, f"Failed to associate L1 node {number} with MGID {mgid}, already associated with {mgid if number in seen else node.mgid}; table:$pre.mgid")
            seen.add(number)

    def _fill(self, mgid: int, members: Members) -> None:
        for number, xid in members:
            node = self.nodes[number]
            node.mgid, node.xid = mgid, xid
            self.trees[mgid][number] = None

    def _empty(self, mgid: int) -> None:
        for number in self.trees[mgid]:
            node = self.nodes[number]
            node.mgid = node.xid = None
        self.trees[mgid] = {}

    def _drop(self, mgid: int) -> None:
        self._empty(mgid)
        del self.trees[mgid]

    # Pruning

    def set_prune(self, l2_xid: int, ports: Iterable[int]) -> Undo:
        """The ports of an L2 XID; INSERT, MODIFY and DELETE are one to the driver."""
        wanted = frozenset(ports)
        if not 0 <= l2_xid < L2_XIDS:
            raise BfrtError(Code.INVALID, f"The L2 XID {l2_xid} is not in 0..{L2_XIDS - 1}; table:$pre.prune")
        for port in wanted:
            _check_port(port)
        old = self.prunes.get(l2_xid, frozenset())

        def put(value: frozenset[int]) -> None:
            if value:
                self.prunes[l2_xid] = value
            else:
                self.prunes.pop(l2_xid, None)

        put(wanted)
        return lambda: put(old)

    # Replication

    def copies(self, mgid: int, l1_xid: int, rid: int, l2_xid: int) -> list[int]:
        """The RIDs of the copies that a packet with this metadata has, in the tree's order."""
        pruned = self.prunes.get(l2_xid, frozenset())
        nodes = self.nodes
        found = []
        for number in self.trees.get(mgid, ()):
            node = nodes[number]
            if node.port is not None and node.xid != l1_xid and not (node.rid == rid and node.port in pruned):
                found.append(node.rid)
        return found


def _one_port(ports: list[int], lags: list[int]) -> int | None:
    if lags:
        raise BfrtError(Code.UNSUPPORTED, "There are no link aggregation groups here; table:$pre.node")
    if len(ports) > 1:
        raise BfrtError(Code.UNSUPPORTED, "Copies leave by their next hops here, so a node has one port; table:$pre.node")
    for port in ports:
        _check_port(port)
    return ports[0] if ports else None


def _check_port(port: int) -> None:
    if not 0 <= port < PORTS:
        raise BfrtError(Code.INVALID, f"There is no port {port}; table:$pre.node")
