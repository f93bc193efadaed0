"""shunt-agent with a switch: calls offloaded, counted and ended, notices, restarts of either side, slow reads, and who owns the program."""

from __future__ import annotations

import contextlib
import re
import subprocess
import zlib
from pathlib import Path

import grpc
import pytest

from shunt.admin import AdminClient, AgentError, Event
from shunt.net import Endpoint, FiveTuple
from tests.bfrt.fake_switch import running
from tests.bfrt.switch_lab import GENERATED, Chip, Phone, SwitchLab, switch_lab, until
from tests.tools.bfrt._pb import bfruntime_pb2 as pb
from tests.tools.bfrt._pb import bfruntime_pb2_grpc

SLOW_ENTRIES, SLOW_READ_S = 200_000, 50e-6
"""A whole read takes 10 s: more than the 2 s after which a data plane that answers nothing is given up."""


async def test_a_call_is_offloaded_counted_and_taken_out(tmp_path: Path) -> None:
    async with switch_lab(tmp_path) as lab:
        chip = lab.chip
        assert len(chip.held("Ingress.media")) == 1
        assert {attribute.table_id for attribute in chip.attributes} == {chip.table("Ingress.relay").id, chip.table("Ingress.relay6").id}
        assert all(attribute.idle_table.idle_table_mode == pb.IdleTable.IDLE_TABLE_NOTIFY_MODE for attribute in chip.attributes)
        status = await lab.status()
        assert status is not None and status["data_plane"] is not None
        assert any("streams only" in lack for lack in status["data_plane"]["lacks"]), status["data_plane"]["lacks"]
        phones, targets = await lab.offloaded_call()
        for phone in phones:
            phone.got.clear()
        due = await lab.talk(phones, targets, 3)
        await until(lambda: [phone.got for phone in phones] == due)
        # Its streams are among those that the chip counts.
        await until(lambda: len(chip.held("Ingress.sample")) >= 2)
        sample = chip.table("Ingress.sample")
        for key in chip.entries[sample.id]:
            chip.counted[sample.id, key] = (50, 8_000)
        streams = (await lab.call("one"))["lines"][0]["streams"]
        assert [stream["counters"]["packets"] for stream in streams if stream["component"] == "rtp"] == [50, 50]
        assert await lab.command("D one a b") == "0"
        await until(lambda: not chip.flows() and not chip.held("Ingress.sample"))
        assert len(chip.held("Ingress.media")) == 1


async def test_a_switch_that_is_not_set_up_is_reported(tmp_path: Path) -> None:
    async with switch_lab(tmp_path) as lab:

        async def problem() -> str | None:
            status = await lab.status()
            assert status is not None
            return next((problem["message"] for problem in status["problems"] if problem["code"] == "switch-not-set-up"), None)

        assert "drops every packet" in await until(problem)
        layer2 = lab.chip.table("Ingress.layer2")
        lab.chip.entries[layer2.id][tuple((field.id, b"\0") for field in layer2.key)] = pb.TableData(action_id=next(iter(layer2.actions)).id)

        async def gone() -> bool:
            return await problem() is None

        await until(gone)


async def test_what_the_switch_drops_is_a_metric_by_reason(tmp_path: Path) -> None:
    async with switch_lab(tmp_path) as lab:
        chip = lab.chip
        egress = chip.table("Egress.dropped")
        index = egress.key["$COUNTER_INDEX"].id
        chip.counted[egress.id, ((index, b"\0\0\0\3"),)] = (7, 0)

        async def dropped() -> dict[str, int]:
            found = re.findall(r'^shunt_data_plane_dropped_packets_total\{reason="(\w+)"\} (\d+)$', await lab.metrics(), re.MULTILINE)
            return {reason: int(packets) for reason, packets in found}

        async def too_big() -> bool:
            return (await dropped()).get("too_big") == 7

        await until(too_big)
        assert set(await dropped()) == {
            "not_addressed", "not_ip", "unrouted", "unknown_nexthop", "turned_back", "too_big", "no_copy", "above_target", "late_copy"
        }  # fmt: skip
        assert {reason for reason, packets in (await dropped()).items() if packets} == {"too_big"}


async def test_the_client_id_fits_the_cookie_of_the_callbacks(tmp_path: Path) -> None:
    """bf_switchd finds the client of a digest or an idle notice by 24 bits of its id: of five starts none has another one."""
    async with switch_lab(tmp_path) as lab:
        key = FiveTuple(Endpoint.of("127.10.0.9", 6000), Endpoint.of(lab.relay_address, 21298))
        for _ in range(5):
            assert lab.chip.learned(key, 1, 0xC0FFEE), "the digest finds no client"
            await lab.agent.end()
            await lab.start_agent()


async def test_a_call_that_fell_silent_ends(tmp_path: Path) -> None:
    async with switch_lab(tmp_path, idle_ms=1000) as lab:
        lab.config["relays"][0]["ttl"] = 5
        await lab.agent.end()
        lab.configure()
        await lab.start_agent()
        await lab.offloaded_call()
        for key in lab.chip.flows():
            assert lab.chip.report_idle(key)
        await until(lambda: not lab.chip.flows())

        async def ended() -> bool:
            async with AdminClient(str(lab.socket)) as admin:
                events = [event async for event in admin.events(1, follow=False)]
            return any(isinstance(event, Event) and event.kind == "ended" and "media-timeout" in str(event.facts) for event in events)

        await until(ended)


async def test_a_restarted_agent_adopts_its_entries(tmp_path: Path) -> None:
    async with switch_lab(tmp_path) as lab:
        phones, targets = await lab.offloaded_call()
        flows = lab.chip.flows()
        await lab.agent.end(kill=True)
        writes = lab.chip.updates[:]
        await lab.start_agent()
        await lab.audit()
        assert lab.chip.flows() == flows
        relay = lab.chip.table("Ingress.relay").name
        inserts = [update for update in lab.chip.updates[len(writes) :] if update == (relay, pb.Update.INSERT)]
        assert not inserts
        assert {state for state, _, _ in (await lab.streams("one")).values()} == {"offloaded"}
        for phone in phones:
            phone.got.clear()
        due = await lab.talk(phones, targets, 2)
        await until(lambda: [phone.got for phone in phones] == due)
        assert await lab.command("D one a b") == "0"
        await until(lambda: not lab.chip.flows())


async def test_entries_that_somebody_else_has_cleared_or_made_are_put_right(tmp_path: Path) -> None:
    async with switch_lab(tmp_path) as lab:
        await lab.offloaded_call()
        flows, relay = lab.chip.flows(), lab.chip.table("Ingress.relay")
        lab.chip.entries[relay.id].clear()
        await lab.audit()
        await until(lambda: lab.chip.flows() == flows)
        # The same by a restart of the switch's daemon: its tables are empty, all streams end.
        lab.chip.entries[relay.id].clear()
        lab.chip.kick()
        await until(lambda: lab.chip.sessions >= 2 and lab.chip.flows() == flows)


def _fill(chip: Chip, count: int) -> None:
    """Entries of somebody else, at other addresses than the agent's."""
    relay = chip.table("Ingress.relay")
    action = next(iter(relay.actions))
    data = pb.TableData(action_id=action.id)
    for field in action.fields:
        data.fields.add(field_id=field.id, stream=bytes(field.size or 0))
    numbers = [field.id for field in relay.key]
    for n in range(count):
        values = (n.to_bytes(4, "big"), bytes((10, 9, 9, 9)), b"\x0f\xa0", b"\x4e\x20")
        chip.entries[relay.id][tuple(zip(numbers, values, strict=True))] = data


async def test_a_large_table_that_is_read_slowly_ends_no_session(tmp_path: Path) -> None:
    """Each audit of 200,000 entries at 50 µs takes 10 s; calls are offloaded meanwhile, and the agent never connects again."""
    chip = Chip()
    _fill(chip, SLOW_ENTRIES)
    chip.read_s, chip.room = SLOW_READ_S, 2 * SLOW_ENTRIES
    async with switch_lab(tmp_path, chip) as lab:
        sessions = chip.sessions
        await lab.offloaded_call("one")
        reads = chip.whole_reads
        with contextlib.suppress(AgentError):  # it does not wait for the end
            await lab.audit()
        await until(lambda: chip.whole_reads > reads, 120)
        await lab.offloaded_call("two", base=6100)
        assert chip.sessions == sessions == 1, lab.agent.text()[-2000:]
        assert len(chip.entries[chip.table("Ingress.relay").id]) >= SLOW_ENTRIES


async def test_the_program_of_another_client_is_left_alone_until_it_goes(tmp_path: Path) -> None:
    chip = Chip()
    async with running(chip) as target, grpc.aio.insecure_channel(target) as channel:
        stub = bfruntime_pb2_grpc.BfRuntimeStub(channel)
        stream = stub.StreamChannel()
        await stream.write(pb.StreamMessageRequest(client_id=1, subscribe=pb.Subscribe()))
        await stream.read()
        bind = pb.SetForwardingPipelineConfigRequest(client_id=1, action=pb.SetForwardingPipelineConfigRequest.BIND)
        bind.config.add(p4_name="relay")
        await stub.SetForwardingPipelineConfig(bind)
        lab = SwitchLab(tmp_path, chip, target)
        try:
            lab.configure()
            lab.relay.start()
            lab.agent.start()
            await until(lambda: "already owns this P4" in lab.agent.text())
            assert not await lab.connected()
            stream.cancel()
            await until(lab.connected)
        finally:
            await lab.close()


async def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    """As a proxy in front of bf_switchd does it, which has none."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", "authority.key", "-out", "authority.pem")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("switch", "agent"):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
    read = lambda name: (tmp_path / name).read_bytes()
    credentials = grpc.ssl_server_credentials([(read("switch.key"), read("switch.pem"))], read("authority.pem"), require_client_auth=True)
    chip = Chip()
    files = {"ca_file": "authority.pem", "certificate_file": "agent.pem", "key_file": "agent.key"}
    async with running(chip, credentials) as target:
        lab = SwitchLab(tmp_path, chip, target, tls={name: str(tmp_path / file) for name, file in files.items()})
        try:
            await lab.start()
            await lab.offloaded_call()
        finally:
            await lab.close()


# -- hashed builds ------------------------------------------------------------------------------------------------


async def two_calls(lab: SwitchLab, *, talk_first: bool = False) -> tuple[list[Phone], list[Endpoint]]:
    """Two calls whose callers' 5-tuples have the same hash; the phones, and where each sends to."""
    first, callee = Endpoint.of("127.10.0.1", 6000), Endpoint.of("127.10.0.2", 7000)
    to_caller = await lab.offer("one", first)
    to_callee = await lab.answer("one", callee)
    phones, targets = [lab.phone(first), lab.phone(callee)], [to_callee, to_caller]
    if talk_first:
        await lab.talk_until_offloaded("one", phones, targets)
    # The second caller's address is chosen when it is known where it will send to.
    other = Endpoint.of("127.10.0.3", 7000)
    to_second = await lab.offer("two", Endpoint.of("127.10.0.9", 6000))
    to_other = await lab.answer("two", other)
    second = colliding_source(FiveTuple(first, to_callee), to_other)
    await lab.offer("two", second)
    await lab.answer("two", other)
    return [*phones, lab.phone(second), lab.phone(other)], [*targets, to_other, to_second]


def crc(key: FiveTuple) -> int:
    """As `RELAY_KEY=hash32` stores it."""
    return zlib.crc32(key.src.addr + key.dst.addr + key.src.port.to_bytes(2, "big") + key.dst.port.to_bytes(2, "big"))


HASH32 = (GENERATED / "hash32.tofino1.context.json").read_bytes()


def colliding_source(key: FiveTuple, to: Endpoint) -> Endpoint:
    """A source in 127.0.0.0/8 that sends to another place and has the hash of `key`."""
    free = [1 << bit for bit in range(40)]  # 24 bits of the address, 16 of the port

    def source(bits: int) -> Endpoint:
        value = 6000 ^ bits
        return Endpoint(bytes((127, *(value >> 16 & 0xFFFFFF).to_bytes(3, "big"))), value & 0xFFFF)

    zero = crc(FiveTuple(source(0), to))
    basis: list[tuple[int, int]] = []
    neutral = [0]  # changes that leave the hash as it is
    for bit in free:
        column, mask = crc(FiveTuple(source(bit), to)) ^ zero, bit
        for other, combined in basis:
            if column ^ other < column:
                column, mask = column ^ other, mask ^ combined
        if column:
            basis.append((column, mask))
            basis.sort(reverse=True)
        else:
            neutral += [mask ^ other for other in neutral]
    rest, mask = crc(key) ^ zero, 0
    for other, combined in basis:
        if rest ^ other < rest:
            rest, mask = rest ^ other, mask ^ combined
    assert not rest, "40 bits reach every hash"
    for change in neutral:
        found = source(mask ^ change)
        if found.port > 1024 and found.addr[1:] != b"\0\0\0":
            assert crc(FiveTuple(found, to)) == crc(key)
            return found
    raise AssertionError("no source has this hash")


async def test_streams_of_one_hash_stay_on_the_relay_and_no_packet_goes_to_the_wrong_phone(tmp_path: Path) -> None:
    async with switch_lab(tmp_path, Chip(hash_of=crc, contexts=(HASH32,))) as lab:
        phones, targets = await two_calls(lab)

        async def collided() -> bool:
            await lab.talk(phones, targets, 5)
            callers = [(await lab.streams(call))["caller"] for call in ("one", "two")]
            callees = [(await lab.streams(call))["callee"][0] for call in ("one", "two")]  # which have hashes of their own
            return callees == ["offloaded"] * 2 and all(reason == "hash-collision" for _, reason, _ in callers)

        await until(collided)
        for phone in phones:
            phone.got.clear()
        due = await lab.talk(phones, targets, 5)
        await until(lambda: [set(phone.got) for phone in phones] == [set(packets) for packets in due])


async def test_an_entry_goes_out_as_soon_as_another_call_of_its_hash_is_set_up(tmp_path: Path) -> None:
    """The first call talks over the chip already; the second one's first packet must not leave by its entry."""
    async with switch_lab(tmp_path, Chip(hash_of=crc, contexts=(HASH32,))) as lab:
        phones, targets = await two_calls(lab, talk_first=True)
        await until(lambda: lab.chip.lookup(FiveTuple(phones[2].at, targets[2])) is None)
        assert (await lab.streams("one"))["caller"][1] == "hash-collision"
        for phone in phones:
            phone.got.clear()
        due = await lab.talk(phones, targets, 10)
        await until(lambda: [set(phone.got) for phone in phones] == [set(packets) for packets in due])


async def test_without_the_check_packets_do_go_to_the_wrong_phone(tmp_path: Path) -> None:
    """What the tests above would miss if the agent did not compare hashes."""
    async with switch_lab(tmp_path, Chip(hash_of=crc, contexts=()), hash="none") as lab:
        phones, targets = await two_calls(lab)

        async def wrong() -> bool:
            await lab.talk(phones, targets, 5)
            return any(b"from 2" in packet for packet in phones[1].got)

        await until(wrong)


@pytest.mark.parametrize(("context", "bits"), [("hash32.tofino1", 32), ("hash48.tofino1", 48)])
async def test_the_hash_is_the_one_that_the_compiler_wrote(tmp_path: Path, context: str, bits: int) -> None:
    chip = Chip(contexts=((GENERATED / f"{context}.context.json").read_bytes(),))
    async with switch_lab(tmp_path, chip) as lab:
        status = await lab.status()
        assert status is not None and status["data_plane"] is not None
        assert status["data_plane"]["name"] == f"BF Runtime target (5-tuples taken as {bits}-bit hashes)"


async def test_a_switch_whose_hash_is_unknown_is_rejected_and_says_what_to_set(tmp_path: Path) -> None:
    """A site's polynomial is its own secret: no function that the agent could assume is the switch's."""
    chip = Chip(hash_of=crc, contexts=())
    async with running(chip) as target:
        lab = SwitchLab(tmp_path, chip, target)
        try:
            lab.configure()
            lab.agent.start()
            await until(lambda: "data_plane.hash" in (tmp_path / "agent.log").read_text())
            assert not await lab.connected()
        finally:
            await lab.close()
