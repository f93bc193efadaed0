"""What a client may ask for: sizes of requests and answers, failures that are named whatever the batch's size, key-only reads, pipes and times to live."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from shunt.config.model import Softswitch as Settings
from tests.bfrt.bulk import Bulk, Flow, cpu_clock, forget_peak, resident_kib, spread
from tests.bfrt.messages import RELAY, TABLES, TTL, entity, insert, key_of
from tests.softswitch.client import DELETE, INSERT, INVALID, MODIFY, NOT_FOUND, Refused, Session, details, until
from tests.softswitch.process import Softswitch
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

pytestmark = pytest.mark.netns

Code = grpc.StatusCode
LIMIT = 2 << 20  # bytes
CAPACITY = 120_000
_TIMEOUT = 60.0


@pytest.fixture(scope="module")
def capacity() -> int:
    return CAPACITY


@pytest.fixture(scope="module")
def roomy(capacity: int) -> Iterator[Softswitch]:
    """A softswitch with the limit of the configuration's default, and room for many entries."""
    with Softswitch(capacity=capacity, request_limit=Settings.model_fields["request_limit"].default) as made:
        yield made


@pytest.fixture
def client(roomy: Softswitch) -> Iterator[Session]:
    with Session(roomy.target) as made:
        yield made
        made.reset_all()


@pytest.fixture(scope="module")
def narrow() -> Iterator[Softswitch]:
    """A softswitch with a low limit."""
    with Softswitch(request_limit=LIMIT) as made:
        yield made


def padded(kind: type, size: int) -> pb.WriteRequest:
    """A request of so many bytes, which names a program of a long name."""
    near = size - 8
    return kind(p4_name="x" * (size - (kind(p4_name="x" * near).ByteSize() - near)))


class Beginning:
    """Stands between a client and the server, to which it passes no more than the client's first `allowed` bytes."""

    def __init__(self, target: str, folder: Path, allowed: int) -> None:
        self.target = f"unix:{folder}/beginning"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.target.removeprefix("unix:"))
        self._listener.listen()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(target.removeprefix("unix:"))
        threading.Thread(target=self._pass_on, args=(allowed,), daemon=True).start()

    def _pass_on(self, allowed: int) -> None:
        client, _ = self._listener.accept()
        threading.Thread(target=self._pass_back, args=(client,), daemon=True).start()
        while allowed and (data := client.recv(allowed)):
            self._server.sendall(data)
            allowed -= len(data)

    def _pass_back(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                client.sendall(data)

    def close(self) -> None:
        for one in (self._listener, self._server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Slow:
    """A client that subscribes and sends a call in parts: HTTP/2 (RFC 9113) by hand, for requests below the initial window of 65,535 bytes. It reads no answer."""

    _DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
    _END_STREAM, _ACK, _END_HEADERS = 1, 1, 4

    _SUBSCRIPTION, _CALL = 1, 3  # stream numbers

    def __init__(self, target: str, method: str, client_id: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(target.removeprefix("unix:"))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(self._SETTINGS, 0, 0) + self._begin(self._SUBSCRIPTION, "StreamChannel"))
        request = pb.StreamMessageRequest(client_id=client_id)
        request.subscribe.SetInParent()
        message = request.SerializeToString()
        self._socket.sendall(self._frame(self._DATA, 0, self._SUBSCRIPTION, b"\0" + len(message).to_bytes(4, "big") + message))
        self._socket.sendall(self._begin(self._CALL, method))
        threading.Thread(target=self._acknowledge, daemon=True).start()

    def _begin(self, stream: int, method: str) -> bytes:
        headers = {":method": "POST", ":scheme": "http", ":path": f"/bfrt_proto.BfRuntime/{method}", ":authority": "localhost", "te": "trailers", "content-type": "application/grpc"}
        # RFC 7541 section 6.2.2: literal header fields without indexing, no Huffman code
        block = b"".join(b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode() for name, value in headers.items())
        return self._frame(self._HEADERS, self._END_HEADERS, stream, block)

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload

    def _acknowledge(self) -> None:
        """The server gives up a client that does not answer its PINGs."""
        answers = self._socket.makefile("rb")
        with contextlib.suppress(OSError, ValueError):
            while len(head := answers.read(9)) == 9:
                payload = answers.read(int.from_bytes(head[:3], "big"))
                if head[3] in (self._SETTINGS, self._PING) and not head[4] & self._ACK:
                    self._socket.sendall(self._frame(head[3], self._ACK, 0, payload if head[3] == self._PING else b""))

    def send(self, data: bytes, *, end: bool = False) -> None:
        """A part of the call's only message, which five bytes precede: its size after a 0."""
        for at in range(0, len(data), 16384):
            last = end and at + 16384 >= len(data)
            self._socket.sendall(self._frame(self._DATA, self._END_STREAM if last else 0, self._CALL, data[at : at + 16384]))

    def close(self) -> None:
        self._socket.close()


# Requests above the limit


@pytest.mark.parametrize(("method", "kind"), [("Write", pb.WriteRequest), ("Read", pb.ReadRequest)])
def test_the_limit_is_exact(narrow: Softswitch, method: str, kind: type) -> None:
    with Session(narrow.target) as session:

        def ask(size: int) -> grpc.StatusCode:
            request = padded(kind, size)
            assert request.ByteSize() == size
            with pytest.raises(grpc.RpcError) as caught:
                answer = getattr(session.stub, method)(request, timeout=_TIMEOUT)
                list(answer) if method == "Read" else answer
            return caught.value.code()

        assert ask(LIMIT) == Code.NOT_FOUND, "read, and there is no such program"
        assert ask(LIMIT + 1) == Code.RESOURCE_EXHAUSTED
        assert ask(LIMIT) == Code.NOT_FOUND, "the connection goes on"


def test_every_call_has_the_limit(narrow: Softswitch) -> None:
    with Session(narrow.target) as session:
        large = pb.SetForwardingPipelineConfigRequest(base_path="x" * LIMIT)
        with pytest.raises(grpc.RpcError) as caught:
            session.stub.SetForwardingPipelineConfig(large, timeout=_TIMEOUT)
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED
        subscribe = pb.StreamMessageRequest(client_id=1 << 20)
        subscribe.subscribe.status.message = "x" * LIMIT
        with pytest.raises(grpc.RpcError) as caught:
            list(session.stub.StreamChannel(iter([subscribe]), timeout=_TIMEOUT))
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED


def test_the_default_is_32_mib(roomy: Softswitch, client: Session) -> None:
    def ask(size: int) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.Write(padded(pb.WriteRequest, size), timeout=_TIMEOUT)
        return caught.value.code()

    assert (ask(32 << 20), ask((32 << 20) + 1)) == (Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED)


def test_a_large_request_is_refused_by_the_size_that_it_announces(roomy: Softswitch, tmp_path: Path) -> None:
    """200 MB, of which the server gets 64 KiB: the answer waits for none of the rest."""
    beginning = Beginning(roomy.target, tmp_path, 65536)
    with contextlib.closing(beginning), grpc.insecure_channel(beginning.target, (("grpc.max_send_message_length", -1), ("grpc.default_authority", "localhost"))) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/bfrt_proto.BfRuntime/Write")(bytes(200_000_000), timeout=_TIMEOUT)
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED, caught.value.details()


def test_what_is_refused_costs_no_memory(roomy: Softswitch, client: Session) -> None:
    large, write = bytes(200_000_000), client.channel.unary_unary("/bfrt_proto.BfRuntime/Write")
    forget_peak(roomy.pid)
    before = resident_kib(roomy.pid)
    for _ in range(5):
        with pytest.raises(grpc.RpcError):
            write(large, timeout=_TIMEOUT)
    assert resident_kib(roomy.pid, "VmHWM") - before < 16 << 10  # KiB, even meanwhile


def test_half_a_request_holds_nobody_up(roomy: Softswitch, client: Session) -> None:
    """A batch of which half is on its way still: others read and write. Then it is applied."""
    bulk, flows = Bulk(client), spread(400)
    insertion = pb.WriteRequest.FromString(bulk.inserts(flows))
    insertion.client_id, insertion.p4_name = client.client_id + 1000, client.program
    request = insertion.SerializeToString()
    message, half = b"\0" + len(request).to_bytes(4, "big") + request, len(request) // 2
    with contextlib.closing(Slow(roomy.target, "Write", insertion.client_id)) as slow:
        slow.send(message[:half])
        for number in range(20):
            assert client.write([insert(number)]) == [None]
            assert len(client.read([entity(number)])) == 1
        assert not bulk.keys(bulk.read(bulk.reading())) & set(flows)
        slow.send(message[half:], end=True)
        until(lambda: set(flows) <= bulk.keys(bulk.read(bulk.reading())), "the batch is applied")


# Answers


def test_a_read_comes_in_messages_of_bounded_size(client: Session) -> None:
    bulk, flows = Bulk(client), spread(10_000)
    bulk.write(bulk.inserts(flows))
    for request, further in ((bulk.reading(), 1), (bulk.reads(flows), 0)):
        responses = bulk.read(request)
        sizes = [len(pb.ReadResponse.FromString(one).entities) for one in responses]
        assert sum(sizes) == len(flows) + further and max(sizes) <= 1024 and max(map(len, responses)) < 1 << 20
        assert bulk.keys(responses) == set(flows)


def test_answers_that_nobody_takes_do_not_pile_up(roomy: Softswitch, client: Session) -> None:
    """Ten clients ask for a table of 100,000 entries, about 16 MB each, and take nothing."""
    bulk = Bulk(client)
    bulk.write(bulk.inserts(spread(100_000)))
    whole = sum(map(len, bulk.read(bulk.reading())))
    assert whole > 12_000_000
    before = resident_kib(roomy.pid)
    calls = [bulk.read_later(bulk.reading()) for _ in range(10)]
    for call in calls:
        next(call)  # each is under way
    time.sleep(1.0)
    grown = (resident_kib(roomy.pid) - before) << 10
    for call in calls:
        call.cancel()
    assert grown < whole, f"{grown} bytes for ten answers of {whole} bytes each"


@pytest.mark.parametrize("flag", ["table_flags", "table_read_flag"])
def test_key_only_reads_return_no_data(client: Session, flag: str) -> None:
    client.write([insert(1), insert(2)])
    whole, one = entity(), entity(2)
    for wanted in (whole, one):
        getattr(wanted.table_entry, flag).key_only = True
    found = [each.table_entry for each in client.read([whole, one])]
    assert [each.is_default_entry for each in found] == [False, False, True, False]
    assert not any(each.HasField("data") for each in found)
    assert {field.exact.value for field in found[3].key.fields} == {value for _, value in key_of(2)}


# Batches that fail in part


def named(text: str) -> set[int]:
    """The positions in a status's text."""
    found: set[int] = set()
    for first, last in re.findall(r" (\d+)(?:-(\d+))? \(", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def failure(call: object, *arguments: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert caught.value.code() == Code.UNKNOWN
    return caught.value


@pytest.mark.parametrize("last", [10, 65_535])
def test_failures_are_named_one_by_one(client: Session, last: int) -> None:
    bulk, flows = Bulk(client), spread(70_000)
    failing = {3, last}
    bulk.write(bulk.inserts([flows[n] for n in failing]))
    errors = details(failure(bulk.write, bulk.inserts(flows)))
    assert errors is not None and len(errors) == last + 1
    assert {n for n, error in enumerate(errors) if error is not None} == failing
    assert len(bulk.keys(bulk.read(bulk.reading()))) == len(flows)


def test_far_failures_are_named_in_ranges(client: Session) -> None:
    bulk, flows = Bulk(client), spread(100_000)
    failing = {0, *range(10, 20), 65_536, *range(99_000, 99_990)}
    bulk.write(bulk.inserts([flows[n] for n in failing]))
    error = failure(bulk.write, bulk.inserts(flows))
    text = error.details() or ""
    assert details(error) is None and text.startswith("Write Error Status: 1002 of 100000 updates failed: 0 (Already exists); 10-19 (")
    assert named(text) == failing and text.endswith("all others were applied")
    assert len(bulk.keys(bulk.read(bulk.reading()))) == len(flows)


def test_far_failures_of_another_kind_are_a_range_of_their_own(client: Session) -> None:
    bulk, flows = Bulk(client), spread(66_000)
    bulk.write(bulk.inserts(flows))
    bad = pb.Update(type=DELETE, entity=entity(7))
    bad.entity.table_entry.table_id = 4711
    request = bulk.inserts(flows) + pb.WriteRequest(updates=[bad]).SerializeToString()
    assert (failure(bulk.write, request).details() or "").split(": ", 2)[2] == "0-65999 (Already exists); 66000 (Object not found); all others were applied"


def test_a_batch_with_too_many_failures_to_name_is_broken_off(client: Session) -> None:
    """Every other update fails: 32,768 of those whose errors would have been named one by one, and the batch ends there."""
    bulk, flows = Bulk(client), spread(110_000)
    bulk.write(bulk.inserts(flows[::2]))
    text = failure(bulk.write, bulk.inserts(flows)).details() or ""
    found = re.search(r" updates from (\d+) on were not tried;", text)
    assert found is not None, text[-200:]
    tried = int(found[1])
    assert 65_536 <= tried < len(flows) and named(text) == set(range(0, tried, 2))
    assert bulk.keys(bulk.read(bulk.reading())) == {*flows[::2], *flows[1:tried:2]}


def test_entries_that_are_not_there_are_named_in_ranges_too(client: Session) -> None:
    bulk, flows = Bulk(client), spread(100_000)
    bulk.write(bulk.inserts(flows[:90_000]))
    read: list[bytes] = []

    def ask() -> None:
        for response in client.channel.unary_stream("/bfrt_proto.BfRuntime/Read")(bulk.reads(flows), timeout=_TIMEOUT):
            read.append(response)

    text = failure(ask).details() or ""
    assert text.startswith("Read Error Status: 10000 of 100000 entities failed: 90000-99999 (Object not found)"), text[:200]
    assert bulk.keys(read) == set(flows[:90_000])


@pytest.mark.parametrize("kind", ["insert", "delete"])
def test_a_batch_that_fails_leaves_no_memory_behind(roomy: Softswitch, client: Session, kind: str) -> None:
    """The largest batches of 100,000 updates all of which fail, again and again: what is resident does not grow with their number."""
    bulk, flows = Bulk(client), spread(100_000)
    if kind == "insert":
        bulk.write(bulk.inserts(flows))
    request = bulk.inserts(flows) if kind == "insert" else bulk.deletes(flows)
    failure(bulk.write, request)
    before = resident_kib(roomy.pid)
    for _ in range(12):
        failure(bulk.write, request)
    assert resident_kib(roomy.pid) - before < 24 << 10  # KiB


def test_deletes_of_nothing_that_are_no_error_take_no_longer(roomy: Softswitch, client: Session) -> None:
    """`ignore_not_found`: the daemon's work for the answer grows with the number of updates, not with its square."""
    bulk, write = Bulk(client), client.channel.unary_unary("/bfrt_proto.BfRuntime/Write")
    metadata = (("ignore_not_found", "1"), ("error_in_resp", "1"))
    costs = []
    for count in (25_000, 100_000):
        request = bulk.deletes([Flow(b"\x0c\0\0\0", b"\x0c\0\0\1", *(n.to_bytes(4, "big")[at : at + 2] for at in (0, 2))) for n in range(count)])
        least = float("inf")
        for _ in range(3):
            began = time.clock_gettime(cpu_clock(roomy.pid))
            answer = pb.WriteResponse.FromString(write(request, metadata=metadata, timeout=_TIMEOUT))
            least = min(least, time.clock_gettime(cpu_clock(roomy.pid)) - began)
            assert len(answer.status) == count and {one.code for one in answer.status} == {NOT_FOUND}
        costs.append(least)
    assert costs[1] < 8 * costs[0], costs  # four times as many


# Pipes and times to live


def refused(client: Session, *updates: pb.Update) -> list[int]:
    """The codes of a batch's errors; 0 for what was applied."""
    return [0 if error is None else error.code for error in client.write(updates)]


def test_a_pipe_other_than_all_is_invalid(client: Session) -> None:
    def ask(pipe: int, direction: int = 0xFF) -> set[grpc.StatusCode]:
        target = pb.TargetDevice(pipe_id=pipe, direction=direction, prsr_id=0xFF)
        found = set()
        for call, request in (
            (client.stub.Write, pb.WriteRequest(client_id=client.client_id, target=target, updates=[pb.Update(type=INSERT, entity=insert(1).entity)])),
            (lambda request: list(client.stub.Read(request)), pb.ReadRequest(client_id=client.client_id, target=target, entities=[entity()])),
        ):
            try:
                call(request)
                found.add(Code.OK)
            except grpc.RpcError as error:
                assert str(pipe) in (error.details() or "")
                found.add(error.code())
            client.write([pb.Update(type=DELETE, entity=entity(1))])
        return found

    assert ask(0xFFFF) == {Code.OK}
    assert ask(0) == ask(1) == ask(3, direction=0) == ask(0xFFFE) == {Code.INVALID_ARGUMENT}


def test_an_entrys_own_pipe_other_than_all_is_invalid(client: Session) -> None:
    wrong, right = insert(1), insert(2)
    wrong.entity.table_entry.entry_tgt.pipe_id, right.entity.table_entry.entry_tgt.pipe_id = 1, 0xFFFF
    assert refused(client, wrong, right) == [INVALID, 0]
    asked = entity(2)
    asked.table_entry.entry_tgt.pipe_id = 1
    with pytest.raises(Refused) as caught:
        client.read([asked])
    assert caught.value.code == INVALID


def notify(interval_ms: int) -> pb.Update:
    """Have idle entries reported."""
    update = pb.Update(type=INSERT)
    attribute = update.entity.table_attribute
    attribute.table_id = RELAY.id
    idle = attribute.idle_table
    idle.enable, idle.idle_table_mode, idle.ttl_query_interval, idle.max_ttl = True, idle.IDLE_TABLE_NOTIFY_MODE, interval_ms, 0xFFFFFFFF
    return update


def test_a_time_to_live_below_the_query_interval_is_invalid(client: Session) -> None:
    assert refused(client, insert(1, ttl=10)) == [0], "nobody asks"
    assert refused(client, notify(5_000)) == [0]
    assert refused(client, insert(2, ttl=4_999), insert(3, ttl=5_000), insert(4, ttl=0), insert(5, ttl=None)) == [INVALID, 0, 0, 0]
    change = pb.Update(type=MODIFY, entity=insert(3, ttl=1, action=None).entity)
    assert refused(client, change) == [INVALID]
    error = client.write([insert(2, ttl=4_999)])[0]
    assert error is not None and "4999" in str(error) and "5000" in str(error)


def ttl_left(client: Session, number: int) -> int:
    (found,) = client.read([entity(number)])
    return next(int.from_bytes(field.stream, "big") for field in found.table_entry.data.fields if field.field_id == TTL)


def idle_ms(client: Session, number: int) -> int:
    table = TABLES["softswitch.quality"]
    (found,) = client.read([entity(number, table=table.id)])
    return next(int.from_bytes(field.stream, "big") for field in found.table_entry.data.fields if field.field_id == table.data["idle_ms"].id)


def test_the_time_to_live_reads_as_the_time_left(client: Session) -> None:
    client.write([insert(1, ttl=600_000), insert(2, ttl=50), insert(3, ttl=0)])
    until(lambda: idle_ms(client, 1) >= 300, "the entries have been idle for a while")
    before = idle_ms(client, 1)
    left = ttl_left(client, 1)
    assert before <= 600_000 - left <= idle_ms(client, 1)
    assert ttl_left(client, 2) == 0, "its time is over"
    assert ttl_left(client, 3) == 0, "it has none"
