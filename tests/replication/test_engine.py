"""The replication engine's tables and the room for lists, without a kernel."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt_softswitch.buddy import Buddy
from shunt_softswitch.entries import BfrtError, Code
from shunt_softswitch.pre import Engine


def engine(count: int = 4) -> Engine:
    made = Engine(max_nodes=10)
    for number in range(count):
        made.add_node(number, 100 + number, [number % 2], [])
    return made


def refused(call: object, *arguments: object) -> Code:
    with pytest.raises(BfrtError) as error:
        call(*arguments)  # type: ignore[operator]
    return error.value.code


def test_what_the_driver_refuses() -> None:
    made = engine()
    made.add_tree(1, [(0, None), (1, 5)])
    assert refused(made.add_node, 0, 1, [0], []) == Code.EXISTS
    assert refused(made.add_node, 9, 1, [512], []) == Code.INVALID
    assert refused(made.add_node, 9, 1, [0, 1], []) == Code.UNSUPPORTED
    assert refused(made.add_node, 9, 1, [0], [1]) == Code.UNSUPPORTED
    assert refused(made.modify_node, 9, 1, [0], []) == Code.NOT_FOUND
    assert refused(made.modify_node, 0, 1, [0], []) == Code.INVALID, "the RID is the node's for life"
    assert refused(made.delete_node, 9) == Code.NOT_FOUND
    assert refused(made.add_tree, 1, []) == Code.EXISTS
    assert refused(made.add_tree, 2, [(9, None)]) == Code.NOT_FOUND
    assert refused(made.add_tree, 2, [(0, None)]) == Code.EXISTS, "a node is in one tree"
    assert refused(made.add_tree, 2, [(2, None), (2, None)]) == Code.EXISTS
    assert refused(made.modify_tree, 2, []) == Code.NOT_FOUND
    assert refused(made.modify_tree, 1, [(0, None), (9, None)]) == Code.NOT_FOUND
    assert refused(made.delete_tree, 2) == Code.NOT_FOUND
    assert refused(made.set_prune, 288, [0]) == Code.INVALID
    assert refused(made.set_prune, 1, [600]) == Code.INVALID
    assert set(made.trees) == {1} and made.members(1) == [(0, None), (1, 5)], "what was refused changed nothing"
    for number in range(4, 10):
        made.add_node(number, 0, [], [])
    assert refused(made.add_node, 10, 0, [], []) == Code.NO_SPACE


def test_a_deleted_node_leaves_its_tree_and_a_tree_leaves_its_nodes() -> None:
    made = engine()
    made.add_tree(1, [(0, None), (1, None), (2, None)])
    undo = made.delete_node(1)
    assert made.copies(1, 0, 0, 0) == [100, 102]
    undo()
    assert made.copies(1, 0, 0, 0) == [100, 101, 102]
    made.delete_tree(1)
    assert len(made.nodes) == 4 and made.copies(1, 0, 0, 0) == []
    made.add_tree(2, [(1, None)])


def test_pruning() -> None:
    made = engine()
    made.add_node(4, 104, [], [])
    made.set_prune(7, [1])
    made.add_tree(1, [(0, 1), (1, 1), (2, 2), (3, None), (4, None)])
    assert made.copies(1, 0, 0, 0) == [100, 101, 102, 103], "a node without a port makes no copy"
    assert made.copies(1, 2, 0, 0) == [100, 101, 103], "an L1 XID takes out the nodes that have it, if it is valid"
    assert made.copies(1, 2, 101, 7) == [100, 103], "a RID with the L2 XID of its port takes out its copy"
    assert made.copies(1, 2, 100, 7) == [100, 101, 103], "but not one on another port"
    assert made.copies(1, 2, 101, 0) == [100, 101, 103]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add_node"), st.integers(0, 5), st.integers(0, 3), st.lists(st.integers(0, 1), max_size=1)),
        st.tuples(st.just("modify_node"), st.integers(0, 5), st.integers(0, 3), st.lists(st.integers(0, 1), max_size=1)),
        st.tuples(st.just("delete_node"), st.integers(0, 5)),
        st.tuples(st.just("add_tree"), st.integers(0, 2), st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 2)), max_size=4)),
        st.tuples(st.just("modify_tree"), st.integers(0, 2), st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 2)), max_size=4)),
        st.tuples(st.just("delete_tree"), st.integers(0, 2)),
        st.tuples(st.just("set_prune"), st.integers(0, 2), st.lists(st.integers(0, 1))),
    ),
    max_size=30,
)


def state(made: Engine) -> object:
    nodes = {number: (node.rid, node.port, node.mgid, node.xid) for number, node in made.nodes.items()}
    return nodes, {mgid: list(tree) for mgid, tree in made.trees.items()}, dict(made.prunes)


@settings(max_examples=200, deadline=None)
@given(steps, st.booleans())
def test_every_change_can_be_taken_back(changes: list[tuple], take_back: bool) -> None:
    made = Engine()
    for name, *arguments in changes:
        before = state(made)
        if name.endswith("_node") and name != "delete_node":
            arguments.append([])
        try:
            undo = getattr(made, name)(*arguments)
        except BfrtError:
            assert state(made) == before
            continue
        if take_back:
            after = state(made)
            undo()
            assert state(made) == before
            getattr(made, name)(*arguments)
            assert state(made) == after
        for mgid, tree in made.trees.items():
            assert all(made.nodes[number].mgid == mgid for number in tree)
        assert sum(node.mgid is not None for node in made.nodes.values()) == sum(map(len, made.trees.values()))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 100)), max_size=60))
def test_room_is_never_given_out_twice(steps: list[tuple[bool, int]]) -> None:
    room = Buddy(256)
    held: dict[int, int] = {}
    for take, number in steps:
        if take:
            at = room.take(number)
            if at:
                assert 0 < at and at + number <= 256
                assert all(at + number <= other or other + words <= at for other, words in held.items())
                held[at] = number
        elif held:
            at = sorted(held)[number % len(held)]
            room.give(at, held.pop(at))
    again = Buddy(256)
    assert all(again.claim(at, words) for at, words in held.items()), "another process finds the same blocks"
    assert again.used == room.used and not any(again.claim(at, words) for at, words in held.items())
    for at, words in held.items():
        room.give(at, words)
    assert room.used == 4 and room.take(128) == 128


def test_room_of_a_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError):
        Buddy(100)
