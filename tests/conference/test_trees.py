"""Replication trees: designs, packing to the engine's limits, and changes under which nobody gets two copies or none."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunt.conference import engine
from shunt.conference.engine import EngineFull, Limits, Replicate, Source
from shunt.conference.migration import Abandoned, Action, Allocator, Write
from shunt.conference.trees import Design, Meeting, Participant, design_of
from tests.conference import model
from tests.conference.model import Tables

TOP = 2


def people(*names: str, port: int | None = None) -> tuple[Participant, ...]:
    return tuple(Participant(name, port if port is not None else n % 4) for n, name in enumerate(names))


def run(tables: Tables, writes: Iterator[Write]) -> list[Write]:
    done = []
    for write in writes:
        if write.action is not Action.DRAIN:
            tables.apply(write.action.value, write.table, write.key, write.value)
        done.append(write)
    return done


def copies(tables: Tables, source: Source, layer: int) -> list[str]:
    """The receivers of a packet of this layer, one entry for each copy."""
    return next(journeys([tables], source, layer))


def journeys(history: list[dict], source: Source, layer: int) -> Iterator[list[str]]:
    """The receivers of a packet that may meet later tables at each stage of its way: ingress, engine, egress.

    Of moments at which a stage does the same, only the earliest counts: all that can follow the others can follow it.
    """
    at_ingress: dict = {}
    for i, tables in enumerate(history):
        at_ingress.setdefault(model.ingress(tables, source), i)
    for action, i in at_ingress.items():
        if not isinstance(action, Replicate):
            yield [action] if action else []
            continue
        at_engine: dict = {}
        for j in range(i, len(history)):
            at_engine.setdefault(tuple(model.replicate(history[j], action, layer)), j)
        for made, j in at_engine.items():
            for tables in history[j:]:
                found = [model.egress(tables, action.stream, rid) for rid, _ in made]
                assert all(copy is None or copy.source == source for copy in found)
                yield [copy.receiver for copy in found if copy is not None]


def wanted(meeting: Meeting) -> dict[tuple[Source, int], set[str]]:
    out = {}
    for sender in meeting.senders():
        for name, layered in sender.sources:
            for layer in range(TOP + 1 if layered else 1):
                out[Source(meeting.name, sender.name, name), layer] = {
                    receiver.name for receiver in meeting.participants if meeting.wants(sender.name, receiver.name, layered, layer, TOP)
                }
    return out


def assert_delivers(tables: Tables, *meetings: Meeting) -> None:
    for meeting in meetings:
        for (source, layer), receivers in wanted(meeting).items():
            assert Counter(copies(tables, source, layer)) == Counter(receivers), (source, layer)


def rows(tables: Tables) -> int:
    return sum(len(table) for table in tables.rows.values())


# -- designs -------------------------------------------------------------------------------------------------------


def test_the_cheapest_design():
    assert design_of(Meeting("m", people("a", "b")), 3) is Design.TWO_PARTY
    assert design_of(Meeting("m", people("a", "b"), {("a", "b"): 1}), 3) is Design.RA_R
    assert design_of(Meeting("m", people("a", "b", "c")), 3) is Design.NRA
    assert design_of(Meeting("m", people("a", "b", "c"), {("a", "c"): 1, ("b", "c"): 1}), 3) is Design.RA_R
    assert design_of(Meeting("m", people("a", "b", "c"), {("a", "c"): 1}), 3) is Design.RA_SR
    listener = Participant("c", 0, ())
    assert design_of(Meeting("m", (*people("a"), listener, Participant("d", 0, ())), {("a", "c"): 0}), 3) is Design.RA_R
    with pytest.raises(ValueError, match="target 3 of b for a is not in 0..2"):
        design_of(Meeting("m", people("a", "b"), {("a", "b"): 3}), 3)


def test_two_meetings_in_one_tree_and_the_exact_rows():
    allocator, tables = Allocator(), Tables()
    m1, m2 = Meeting("m1", people("a", "b", "c")), Meeting("m2", people("x", "y", "z", port=0))
    run(tables, allocator.change(m1))
    run(tables, allocator.change(m2))
    assert tables[engine.MGID] == {3: (*((n, True, 1) for n in (1, 2, 3)), *((n, True, 2) for n in (4, 5, 6)))}
    assert tables[engine.NODE] == {1: (1, (0,)), 2: (3, (1,)), 3: (5, (2,)), 4: (2, (0,)), 5: (4, (0,)), 6: (6, (0,))}
    assert tables[engine.PRUNE] == {1: (0,), 2: (1,), 3: (2,)}
    assert tables[engine.CONFERENCE][Source("m1", "b", "audio")] == Replicate(mgid=3, trees=1, l1_xid=2, rid=3, l2_xid=2, stream=3)
    assert tables[engine.CONFERENCE][Source("m2", "z", "video")] == Replicate(mgid=3, trees=1, l1_xid=1, rid=6, l2_xid=1, stream=12)
    assert tables[engine.COPY][3, 1] == engine.CopyTo(Source("m1", "b", "audio"), "a")
    assert_delivers(tables, m1, m2)


def test_many_receivers_on_one_port():
    allocator, tables = Allocator(), Tables()
    meeting = Meeting("m", people(*(f"p{n}" for n in range(50)), port=7))
    run(tables, allocator.change(meeting))
    assert_delivers(tables, meeting)
    assert len(model.replicate(tables, tables[engine.CONFERENCE]["m", "p9", "video"], 2)) == 49


@pytest.mark.parametrize("design", [Design.NRA, Design.RA_R, Design.RA_SR])
def test_every_design_does_what_the_cheapest_does(design):
    allocator, tables = Allocator(), Tables()
    meeting = Meeting("m", people("a", "b", "c", "d"))
    run(tables, allocator.change(meeting, design=design))
    assert_delivers(tables, meeting)
    assert allocator.placements["m"].design is design


def test_adapted_receivers():
    allocator, tables = Allocator(), Tables()
    by_receiver = Meeting("r", people("a", "b", "c"), {("a", "c"): 0, ("b", "c"): 0, ("a", "b"): 1, ("c", "b"): 1})
    by_pair = Meeting("s", people("a", "b", "c"), {("a", "c"): 0, ("b", "a"): 1})
    run(tables, allocator.change(by_receiver))
    run(tables, allocator.change(by_pair))
    assert [allocator.placements[name].design for name in "rs"] == [Design.RA_R, Design.RA_SR]
    assert_delivers(tables, by_receiver, by_pair)
    assert copies(tables, Source("r", "a", "video"), 2) == [] and copies(tables, Source("r", "a", "video"), 1) == ["b"]
    assert copies(tables, Source("s", "a", "video"), 2) == ["b"] and sorted(copies(tables, Source("s", "a", "audio"), 0)) == ["b", "c"]


def test_a_design_that_cannot():
    with pytest.raises(ValueError, match="NRA cannot do what RA-SR has to"):
        Allocator().change(Meeting("m", people("a", "b", "c"), {("a", "c"): 1}), design=Design.NRA)
    with pytest.raises(ValueError, match="two participants of one name"):
        Allocator().change(Meeting("m", people("a", "a", "c")))


# -- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("design", "participants", "expected"), [(Design.NRA, 3, 2 * 63), (Design.RA_R, 3, 2 * 21), (Design.RA_SR, 4, 2 * 21 // 4), (Design.RA_SR, 10, 2 * 21 // 10)]
)
def test_packing_reaches_what_the_formula_says(design, participants, expected):
    """64 trees: 2T, 2T/q and 2T/(qN) meetings, as in the paper, MGID 0 left out; and it all comes back."""
    allocator, tables = Allocator(Limits(trees=64)), Tables()
    names = [f"p{n}" for n in range(participants)]
    placed = []
    with pytest.raises(EngineFull, match="all 21 sets of trees are taken"):
        for n in itertools.count():
            meeting = Meeting(f"m{n}", people(*names))
            run(tables, allocator.change(meeting, design=design))
            placed.append(meeting)
    assert len(placed) == expected
    assert_delivers(tables, *random.Random(1).sample(placed, 2))
    before = rows(tables)
    with pytest.raises(EngineFull):
        allocator.change(Meeting("one too many", people(*names)), design=design)
    assert rows(tables) == before
    for meeting in placed:
        run(tables, allocator.change(Meeting(meeting.name, ())))
    assert rows(tables) == 0 and not allocator.placements
    for n in range(expected):  # nothing leaked
        run(tables, allocator.change(Meeting(f"again{n}", people(*names)), design=design))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(nodes=3), "all 2 L1 nodes"), (Limits(rids=5), "5 RIDs are for 2 participants"), (Limits(l2_xids=3), "all 2 L2 exclusion sets"),
        (Limits(streams=4), "all 3 stream numbers"),
    ],
)
def test_every_limit_is_named_and_nothing_is_kept(limits, words):
    allocator = Allocator(limits)
    for _ in range(3):
        with pytest.raises(EngineFull, match=words):
            allocator.change(Meeting("m", people("a", "b", "c")))
    assert not allocator.placements
    run(Tables(), allocator.change(Meeting("m", (Participant("a", 0), Participant("b", 0)))))  # two parties need nothing of it


def test_single_trees_and_sets_share_the_engine():
    allocator, tables = Allocator(Limits(trees=4)), Tables()  # one block of three
    small = [Meeting(f"n{n}", people("a", "b", "c")) for n in range(6)]
    for meeting in small:
        run(tables, allocator.change(meeting))
    assert_delivers(tables, *small)
    adapted = Meeting("r", people("a", "b"), {("a", "b"): 0})
    with pytest.raises(EngineFull):
        allocator.change(adapted)
    for meeting in small:
        run(tables, allocator.change(Meeting(meeting.name, ())))
    run(tables, allocator.change(adapted))
    assert_delivers(tables, adapted)


# -- changes -------------------------------------------------------------------------------------------------------


def frozen(tables: Tables) -> dict[str, dict]:
    return {name: dict(table) for name, table in tables.rows.items()}


def check_between(history: list[dict[str, dict]], before: Meeting, after: Meeting) -> None:
    """No packet, wherever the writes overtake it, is lost or doubled: it may meet later tables at each stage of its way."""
    old, new = wanted(before), wanted(after)
    ports = [{p.name for p in meeting.participants} for meeting in (before, after)]
    for source, layer in old.keys() | new.keys():
        was, will = old.get((source, layer), set()), new.get((source, layer), set())
        always = was & will if source.sender in ports[0] & ports[1] else set()
        most = was | will
        if (source, layer) not in new:  # last packets of a stream that ends may follow who is raised in the same change
            most = (ports[0] | ports[1]) - {source.sender}
        for receivers in journeys(history, source, layer):
            got = Counter(receivers)
            assert all(count == 1 for count in got.values()), (source, layer, got)
            assert always <= got.keys() <= most, (source, layer, got)


def change_checked(allocator: Allocator, tables: Tables, before: Meeting, after: Meeting, others: tuple[Meeting, ...] = (), **options) -> list[Write]:
    """Carry a change out; packets may be under way across any writes, but not across the drain."""
    history, done = [frozen(tables)], []
    for write in allocator.change(after, **options):
        if write.action is Action.DRAIN:
            check_between(history, before, after)
            assert_delivers(tables, after)
            history = [history[-1]]
        else:
            tables.apply(write.action.value, write.table, write.key, write.value)
            history.append(frozen(tables))
            assert_delivers(tables, *others)
        done.append(write)
    check_between(history, after, after)
    assert_delivers(tables, after, *others)
    return done


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize(("first", "second"), list(itertools.permutations([Design.NRA, Design.RA_R, Design.RA_SR], 2)) + [(Design.NRA, Design.NRA)])
def test_migration_between_designs(first, second, rebuild):
    allocator, tables = Allocator(), Tables()
    neighbour, meeting = Meeting("n", people("x", "y", "z")), Meeting("m", people("a", "b", "c"))
    run(tables, allocator.change(neighbour, design=first))
    run(tables, allocator.change(meeting, design=first))
    done = change_checked(allocator, tables, meeting, meeting, (neighbour,), design=second, rebuild=rebuild)
    if first is second and not rebuild:
        assert done == [Write(Action.DRAIN)]
    for name in "mn":
        run(tables, allocator.change(Meeting(name, ())))
    assert rows(tables) == 0


def test_two_become_three_and_two_again():
    allocator, tables = Allocator(), Tables()
    two, three = Meeting("m", people("a", "b")), Meeting("m", people("a", "b", "c"))
    run(tables, allocator.change(two))
    assert len(tables[engine.RELAY]) == 4 and not tables[engine.CONFERENCE]
    change_checked(allocator, tables, two, three)
    assert not tables[engine.RELAY] and len(tables[engine.CONFERENCE]) == 6
    change_checked(allocator, tables, three, two)
    assert len(tables[engine.RELAY]) == 4 and rows(tables) == 4


def test_a_join_in_place_writes_each_tree_once_and_moves_no_stream():
    allocator, tables = Allocator(), Tables()
    before = Meeting("m", people("a", "b", "c"))
    run(tables, allocator.change(before))
    done = change_checked(allocator, tables, before, Meeting("m", people("a", "b", "c", "d")))
    assert [(write.action.value, write.table) for write in done if write.table in (engine.MGID, engine.CONFERENCE)] == [
        ("modify", engine.MGID), ("add", engine.CONFERENCE), ("add", engine.CONFERENCE),
    ]


def test_the_checker_sees_a_break():
    """Freeing before moving, and a move without a tree, are found."""
    allocator, tables = Allocator(), Tables()
    meeting = Meeting("m", people("a", "b", "c"))
    run(tables, allocator.change(meeting))
    writes = list(Allocator().change(meeting))  # the same rows again, in a wrong order: delete, then add
    history = [frozen(tables)]
    move = next(write for write in writes if write.table == engine.CONFERENCE)
    tables.apply("delete", engine.CONFERENCE, move.key, None)
    history.append(frozen(tables))
    with pytest.raises(AssertionError):
        check_between(history, meeting, meeting)
    tables.apply("add", engine.CONFERENCE, move.key, move.value)
    member = tables[engine.MGID][3][1]
    history = [frozen(tables)]
    tables.apply("modify", engine.MGID, 3, (*tables[engine.MGID][3], member))
    history.append(frozen(tables))
    with pytest.raises(AssertionError):
        check_between(history, meeting, meeting)


def test_writes_that_a_data_plane_refuses():
    tables = Tables()
    with pytest.raises(ValueError, match="names a node that is not there"):
        tables.apply("add", engine.MGID, 1, (engine.Member(1, True, 1),))
    tables.apply("add", engine.NODE, 1, engine.Node(1, (0,)))
    tables.apply("add", engine.MGID, 1, (engine.Member(1, True, 1),))
    with pytest.raises(ValueError, match="a tree names it"):
        tables.apply("delete", engine.NODE, 1, None)
    with pytest.raises(ValueError, match="there is one"):
        tables.apply("add", engine.NODE, 1, engine.Node(1, (0,)))
    with pytest.raises(ValueError, match="rows there are only modified"):
        tables.apply("add", engine.PRUNE, 1, (3,))
    with pytest.raises(ValueError, match="there is none"):
        tables.apply("modify", engine.NODE, 2, engine.Node(1, (0,)))


def test_one_change_of_a_meeting_at_a_time():
    allocator = Allocator()
    writes = allocator.change(Meeting("m", people("a", "b", "c")))
    with pytest.raises(RuntimeError, match="meeting m is being changed"):
        allocator.change(Meeting("m", ()))
    run(Tables(), writes)
    run(Tables(), allocator.change(Meeting("other", people("a", "b"))))


@pytest.mark.parametrize("failing", range(0, 30, 3))
def test_a_change_that_fails_while_building_is_taken_back(failing):
    allocator, tables = Allocator(), Tables()
    before = Meeting("m", people("a", "b", "c"))
    run(tables, allocator.change(before))
    start = frozen(tables)
    writes = allocator.change(Meeting("m", people("a", "b", "c", "d"), {("a", "b"): 0}))
    for _ in range(failing):
        write = next(writes)
        assert (write.action, write.table) in ((Action.MODIFY, engine.PRUNE), *((Action.ADD, table) for table in (engine.NODE, engine.MGID, engine.COPY)))
        tables.apply(write.action.value, write.table, write.key, write.value)
    failed = next(writes)
    tables.apply(failed.action.value, failed.table, failed.key, failed.value)  # it was in after all
    for write in itertools.chain([writes.throw(Abandoned())], writes):
        tables.apply(write.action.value, write.table, write.key, write.value)
    assert frozen(tables) == start
    change_checked(allocator, tables, before, Meeting("m", people("a", "b", "c", "d"), {("a", "b"): 0}))
    run(tables, allocator.change(Meeting("m", ())))
    assert rows(tables) == 0


names = st.lists(st.sampled_from("abcde"), unique=True, max_size=5)
states = st.tuples(names, st.dictionaries(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), st.integers(0, 2), max_size=4), st.booleans(), st.booleans())


def meeting_of(name: str, state) -> Meeting:
    members, targets, uniform, listener = state
    if uniform:  # by receiver
        targets = {(sender, receiver): target for (_, receiver), target in targets.items() for sender in "abcde"}
    quiet = members[-1] if listener and len(members) > 1 else None
    return Meeting(
        name,
        tuple(Participant(member, ord(member) % 3, () if member == quiet else (("video", True), ("audio", False))) for member in members),
        targets,
    )


@given(st.lists(st.tuples(st.booleans(), states, st.booleans()), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_any_changes_of_two_meetings_lose_and_double_nothing(changes):
    allocator, tables = Allocator(Limits(trees=64)), Tables()
    current = {name: Meeting(name, ()) for name in "mn"}
    for which, state, rebuild in changes:
        name = "mn"[which]
        after = meeting_of(name, state)
        change_checked(allocator, tables, current[name], after, (current["nm"[which]],), rebuild=rebuild)
        current[name] = after
    for name in "mn":
        run(tables, allocator.change(Meeting(name, ())))
    assert rows(tables) == 0


@given(states, states, states, states, st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_changes_of_two_meetings_side_by_side(one, two, three, four, rng):
    """Both live in the halves of the same trees, and their writes interleave."""
    allocator, tables = Allocator(Limits(trees=64)), Tables()
    before = {"m": meeting_of("m", one), "n": meeting_of("n", two)}
    after = {"m": meeting_of("m", three), "n": meeting_of("n", four)}
    for meeting in before.values():
        run(tables, allocator.change(meeting))
    running = {name: allocator.change(meeting) for name, meeting in after.items()}
    while running:
        name = rng.choice(sorted(running))
        write = next(running[name], None)
        if write is None:
            del running[name]
            continue
        if write.action is Action.DRAIN:
            continue
        tables.apply(write.action.value, write.table, write.key, write.value)
        for other in after:
            for (source, layer), receivers in wanted(after[other]).items():
                got = Counter(copies(tables, source, layer))
                assert all(count == 1 for count in got.values())
                assert wanted(before[other]).get((source, layer), set()) & receivers <= got.keys()
    assert_delivers(tables, *after.values())
