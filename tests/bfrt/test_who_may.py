"""Who may do what: subscribed clients read and write, the bound one resets, `owners` names who may bind; and on which addresses it is served."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.bfrt.messages import delete, entity, insert
from tests.bfrt.traffic import namespace
from tests.softswitch.client import PROGRAM, Refused, Session, until
from tests.softswitch.process import ROOT, Softswitch, SoftswitchFailed
from tests.softswitch.testrun import inside
from tests.tools.bfrt._pb import bfruntime_pb2 as pb

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

DENIED = 7  # google.rpc.Code
Request = pb.SetForwardingPipelineConfigRequest
RESETS = [Request.VERIFY, Request.VERIFY_AND_WARM_INIT_BEGIN, Request.VERIFY_AND_WARM_INIT_BEGIN_AND_END, Request.WARM_INIT_END]


@pytest.fixture(scope="module")
def softswitch() -> Iterator[Softswitch]:
    """A softswitch whose tables any client of its Unix socket may own."""
    with Softswitch(owners=["unix"]) as made:
        yield made


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


def set_config(session: Session, action: int, *, client_id: int | None = None) -> Callable[[], object]:
    config = [] if action == Request.WARM_INIT_END else [pb.ForwardingPipelineConfig(p4_name=PROGRAM)]
    request = Request(client_id=session.client_id if client_id is None else client_id, action=action, config=config)
    return lambda: session.stub.SetForwardingPipelineConfig(request, timeout=30)


# Subscriptions


@pytest.mark.parametrize(("name", "expected"), [(PROGRAM, grpc.StatusCode.PERMISSION_DENIED), ("", grpc.StatusCode.NOT_FOUND)])
def test_read_and_write_need_a_subscription(softswitch: Softswitch, name: str, expected: grpc.StatusCode) -> None:
    """The program's name lets a subscribed client in that is not bound, and no other. Without it the answer is that of P4 Studio's server."""
    with Session(softswitch.target) as owner:
        stranger = 0xABCDEF
        for call in (
            lambda: owner.stub.Write(pb.WriteRequest(client_id=stranger, p4_name=name, updates=[insert(1)])),
            lambda: list(owner.stub.Read(pb.ReadRequest(client_id=stranger, p4_name=name, entities=[entity()]))),
        ):
            code, text = refusal(call)
            assert code == expected and (not name or str(stranger) in text), text
        assert owner.read([entity(1)]) == []


@pytest.mark.parametrize("action", RESETS)
def test_a_reset_needs_the_bound_client(softswitch: Softswitch, action: int) -> None:
    with Session(softswitch.target) as owner, Session(softswitch.target, bind=False) as other:
        owner.write([insert(1)])
        for call, who in (
            (set_config(other, action), other.client_id),
            (set_config(other, action, client_id=0xABCDEF), 0xABCDEF),
            (set_config(other, action, client_id=owner.client_id), owner.client_id),  # the owner's id, by another's connection
        ):
            code, text = refusal(call)
            assert code == grpc.StatusCode.PERMISSION_DENIED and str(who) in text, text
        assert len(owner.read([entity(1)])) == 1
        owner.reset_all()
        assert owner.read([entity(1)]) == []


def test_a_client_whose_stream_has_ended_may_no_more(softswitch: Softswitch) -> None:
    with Session(softswitch.target, bind=False) as other:
        with Session(softswitch.target) as gone:
            assert gone.write([insert(1)]) == [None]
        request = pb.WriteRequest(client_id=gone.client_id, p4_name=PROGRAM, updates=[insert(2)])

        def code() -> grpc.StatusCode:
            try:
                other.stub.Write(request)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        until(lambda: code() == grpc.StatusCode.PERMISSION_DENIED, "the end of the stream is noticed")
        other.clear(other.table("relay"))


def test_binding_comes_by_the_subscriptions_connection(softswitch: Softswitch) -> None:
    with Session(softswitch.target, bind=False) as first, Session(softswitch.target, bind=False) as second:
        code, text = refusal(set_config(second, Request.BIND, client_id=first.client_id))
        assert code == grpc.StatusCode.PERMISSION_DENIED and str(first.client_id) in text
        set_config(first, Request.BIND)()


# Owners


def outcome(target: str, credentials: grpc.ChannelCredentials | None = None) -> str:
    """What becomes of a client that subscribes, reads, writes, and tries to bind: `bound` or `not bound`. One that may not bind may do nothing else."""
    with Session(target, bind=False, credentials=credentials) as session:
        write = pb.WriteRequest(client_id=session.client_id, p4_name=PROGRAM, updates=[insert(7), delete(7)])
        calls = (lambda: session.read([entity()]), lambda: session.stub.Write(write, timeout=30))
        try:
            set_config(session, Request.BIND)()
        except grpc.RpcError as error:
            text = error.details() or ""
            assert (error.code() == grpc.StatusCode.PERMISSION_DENIED and "owners" in text) or "already owns" in text, error
            for call in calls:
                with pytest.raises((grpc.RpcError, Refused)) as caught:
                    call()
                code, text = (caught.value.code, str(caught.value)) if isinstance(caught.value, Refused) else (caught.value.code(), caught.value.details() or "")
                assert code in (DENIED, grpc.StatusCode.PERMISSION_DENIED) and "owners" in text, caught.value
            return "not bound"
        for call in calls:
            call()
        return "bound"


def modified(target: str, client_id: int) -> str:
    """What becomes of a delete with the number of another client."""
    with Session(target, bind=False) as session:
        try:
            session.stub.Write(pb.WriteRequest(client_id=client_id, p4_name=PROGRAM, updates=[delete(1)]), timeout=30)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def outcome_as(user: str, target: str) -> str:
    """outcome() in a process of another user."""
    return _as(user, f"outcome({target!r})")


def modify_as(user: str, target: str, client_id: int) -> str:
    """modified() in a process of another user."""
    return _as(user, f"modified({target!r}, {client_id})")


def _as(user: str, call: str) -> str:
    """What a function here returns in a process of another user, which ends without clearing up: threads of gRPC abort it now and then when modules go."""
    code = f"import os; from tests.bfrt.test_who_may import modified, outcome; print({call}, flush=True); os._exit(0)"
    account = pwd.getpwnam(user)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, user=account.pw_uid, group="root", extra_groups=[],
            env={"PYTHONPATH": f"{ROOT}:{ROOT}/operator", "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
        )  # fmt: skip
        if os.strerror(errno.EAGAIN) not in done.stderr:  # gRPC aborts where the kernel refuses it a thread for the moment
            break
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("owners", "expected"), [(["unix"], "bound"), (["user:root"], "bound"), (["user:nobody", "tcp", "tls"], "not bound"), ([], "not bound")])
def test_owners_of_a_unix_socket(owners: list[str], expected: str) -> None:
    with Softswitch(owners=owners) as softswitch:
        assert outcome(softswitch.target) == expected


def test_owners_are_told_apart_by_their_user() -> None:
    with Softswitch(owners=["user:nobody"]) as softswitch:
        softswitch.folder.chmod(0o755)
        assert (outcome(softswitch.target), outcome_as("nobody", softswitch.target)) == ("not bound", "bound")


@pytest.mark.parametrize(("owners", "expected"), [(["tcp"], "bound"), (["user:root"], "bound"), (["unix", "tls", "user:nobody"], "not bound")])
def test_owners_by_tcp(owners: list[str], expected: str) -> None:
    with Softswitch(owners=owners, listen="127.0.0.1:0") as softswitch:
        assert outcome(softswitch.target) == expected


def test_owners_by_tcp_on_loopback_are_told_apart_by_their_user() -> None:
    with Softswitch(owners=["user:nobody"], listen="127.0.0.1:0") as softswitch:
        assert (outcome(softswitch.target), outcome_as("nobody", softswitch.target)) == ("not bound", "bound")
        assert f"{softswitch.target}: the user nobody may read and write the tables" in softswitch.log


def test_another_user_redirects_no_media_by_tcp() -> None:
    """Neither as itself nor with the owner's number, while the owner is there and after it."""
    with Softswitch(owners=["unix", "user:root"], listen="127.0.0.1:0") as softswitch:
        with Session(softswitch.target) as owner:
            owner.write([insert(1)])
            assert outcome_as("nobody", softswitch.target) == "not bound"
            other = modify_as("nobody", softswitch.target, owner.client_id)
            assert other == "PERMISSION_DENIED"
            assert len(owner.read([entity(1)])) == 1
        assert outcome_as("nobody", softswitch.target) == "not bound"


def test_a_request_comes_by_the_connection_of_its_subscription(softswitch: Softswitch) -> None:
    with Session(softswitch.target) as owner, Session(softswitch.target, bind=False) as other:
        for call in (
            lambda: other.stub.Write(pb.WriteRequest(client_id=owner.client_id, p4_name=PROGRAM, updates=[insert(1)])),
            lambda: list(other.stub.Read(pb.ReadRequest(client_id=owner.client_id, p4_name=PROGRAM, entities=[entity()]))),
        ):
            code, text = refusal(call)
            assert code == grpc.StatusCode.PERMISSION_DENIED and "another connection" in text
        assert owner.read([entity(1)]) == []


def test_the_log_says_what_is_open_to_every_local_user() -> None:
    with Softswitch(owners=["unix", "tcp"], listen="127.0.0.1:0") as softswitch:
        assert f"{softswitch.target}: EVERY LOCAL USER (softswitch.owners: tcp) may read and write the tables" in softswitch.log
    with Softswitch(owners=["unix", "tls"], listen="127.0.0.1:0") as softswitch:
        assert f"{softswitch.target}: nobody may read and write the tables" in softswitch.log


def test_what_an_owner_leaves_is_not_for_everybody() -> None:
    """A client that may not own finds the entries of a dead owner, and cannot take them over."""
    with Softswitch(owners=["user:root"]) as softswitch:
        softswitch.folder.chmod(0o755)
        with Session(softswitch.target) as owner:
            owner.write([insert(1)])
        assert outcome_as("nobody", softswitch.target) == "not bound"
        with Session(softswitch.target) as owner:
            assert len(owner.read([entity(1)])) == 1


# Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`authority`, and of it `server`, `agent` (for agent.example and www.agent.example) and `other` (for other.example); `stranger` signs itself."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    def signed(name: str, subject: str, names: str) -> None:
        (folder / f"{name}.names").write_text(f"subjectAltName={names}\n")
        openssl("req", *key, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.names", "-out", f"{name}.pem")

    for name, subject in (("authority", "authority"), ("stranger", "agent.example")):
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={subject}", "-addext", f"subjectAltName=DNS:{subject}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    signed("server", "server", "DNS:localhost,IP:127.0.0.1,IP:10.91.1.1")
    signed("agent", "agent", "DNS:agent.example,DNS:www.agent.example")
    signed("other", "agent.example", "DNS:other.example")
    return folder


def server_files(folder: Path) -> dict[str, str | None]:
    return {"ca_file": str(folder / "authority.pem"), "certificate_file": str(folder / "server.pem"), "key_file": str(folder / "server.key")}


def credentials(folder: Path, name: str | None) -> grpc.ChannelCredentials:
    """Of a client with this certificate; None: with none."""
    own = () if name is None else ((folder / f"{name}.key").read_bytes(), (folder / f"{name}.pem").read_bytes())
    return grpc.ssl_channel_credentials((folder / "authority.pem").read_bytes(), *own)


@pytest.fixture(scope="module", params=["certificate:agent.example", "tls", "certificate:agent", "tcp"])
def by_tls(certificates: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Owners, and where they are served over TLS."""
    with Softswitch(listen="127.0.0.1:0", tls=server_files(certificates), owners=[request.param]) as softswitch:
        yield request.param, softswitch.target


@pytest.mark.parametrize("name", ["agent", "other"])
def test_owners_by_certificate(certificates: Path, by_tls: tuple[str, str], name: str) -> None:
    """The names of subjectAltName count, the subject's own does not; no certificate's owner is one by TCP."""
    owners, target = by_tls
    bound = owners == "tls" or (owners, name) == ("certificate:agent.example", "agent")
    assert outcome(target, credentials(certificates, name)) == ("bound" if bound else "not bound")


@pytest.mark.parametrize("name", [None, "stranger"])
def test_without_a_certificate_of_the_authority_nobody_is_served(certificates: Path, by_tls: tuple[str, str], name: str | None) -> None:
    with grpc.secure_channel(by_tls[1], credentials(certificates, name)) as channel:
        call = channel.unary_unary("/bfrt_proto.BfRuntime/GetForwardingPipelineConfig")
        assert refusal(lambda: call(b"", timeout=30))[0] == grpc.StatusCode.UNAVAILABLE


def test_a_client_in_the_clear_is_not_served(by_tls: tuple[str, str]) -> None:
    with grpc.insecure_channel(by_tls[1]) as channel:
        call = channel.unary_unary("/bfrt_proto.BfRuntime/GetForwardingPipelineConfig")
        assert refusal(lambda: call(b"", timeout=30))[0] == grpc.StatusCode.UNAVAILABLE


# Addresses


def test_a_unix_socket_is_for_its_group(tmp_path: Path) -> None:
    group = next(one for one in grp.getgrall() if one.gr_gid not in (0, os.getegid()))

    class Grouped(Softswitch):
        def settings(self) -> dict[str, object]:
            return super().settings() | {"socket_group": group.gr_name}

    with Grouped(listen=f"unix:{tmp_path}/run/bfrt.sock"):
        found = (tmp_path / "run/bfrt.sock").stat()
        assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o660
        assert (found.st_uid, found.st_gid) == (os.geteuid(), group.gr_gid)


def test_others_than_the_group_cannot_connect(softswitch: Softswitch) -> None:
    softswitch.folder.chmod(0o755)
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({softswitch.target.removeprefix('unix:')!r})"
    for group, expected in (("root", 0), ("nogroup", 1)):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, user="nobody", group=group, extra_groups=[])
        assert done.returncode == expected and ("PermissionError" in done.stderr) == bool(expected), done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0", "10.91.1.1", "[::]", "[fd91::1]"])
@pytest.mark.parametrize("tls", [None, "without ca_file"])
def test_other_addresses_than_loopback_need_client_certificates(certificates: Path, tmp_path: Path, address: str, tls: str | None) -> None:
    files = server_files(certificates) | {"ca_file": None} if tls is not None else None
    softswitch = Softswitch(listen=f"{address}:0", tls=files, pin_dir=f"/sys/fs/bpf/{tmp_path.name.replace('.', '')}{os.getpid()}")
    with pytest.raises(SoftswitchFailed) as failed:
        softswitch.start()
    shutil.rmtree(softswitch.folder)
    lines = failed.value.log.splitlines()
    assert failed.value.code == 78 and len(lines) == 1 and f"{address}:0" in lines[0] and "ca_file" in lines[0], failed.value.log
    assert not softswitch.pin_dir.exists()


def test_with_client_certificates_it_is_served_to_others(certificates: Path) -> None:
    with namespace() as home, Softswitch(listen="10.91.1.1:0", tls=server_files(certificates), owners=["certificate:agent.example"], namespace=home) as softswitch:
        with inside(home):
            assert outcome(softswitch.target, credentials(certificates, "agent")) == "bound"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "[::1]"])
def test_loopback_needs_none(address: str) -> None:
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(namespace())
        softswitch = stack.enter_context(Softswitch(listen=f"{address}:0", namespace=home))
        with inside(home):
            assert outcome(softswitch.target) == "bound"
