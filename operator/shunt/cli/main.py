"""The `shunt` command: starts the daemons, checks configurations, and queries the operator daemon.

Every command imports what it needs when it runs, so that `shunt calls` does not wait for gRPC.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shunt import version
from shunt.calls.kinds import State
from shunt.calls.reasons import REASONS
from shunt.cli.consent import YES, consent
from shunt.cli.failure import EXIT_PROBLEM, EXIT_USAGE, Failure
from shunt.cli.moment import Duration, Moment
from shunt.errors import plain

if TYPE_CHECKING:
    from shunt.cli.client import Client
    from shunt.config.load import ConfigError
    from shunt.config.model import Config

_DEFAULT_API = "http://127.0.0.1:8077"
_EXIT_CODES = "Exit codes: 0 all is well; 1 a problem, or not found; 2 wrong usage; 3 the agent cannot be reached."
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Command(click.Command):
    """A command whose help ends with the exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("epilog", _EXIT_CODES)
        super().__init__(*args, **kwargs)


class _Group(click.Group):
    command_class = _Command
    elsewhere = {"conference": "shunt.cli.conference", "room": "shunt.cli.room"}  # groups that their own package defines

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.elsewhere])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.elsewhere:
            return getattr(importlib.import_module(self.elsewhere[cmd_name]), cmd_name)  # type: ignore[no-any-return]  # a command of that name is a click.Command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Group, context_settings=_CONTEXT, epilog=_EXIT_CODES)
@click.version_option(version(), message="shunt %(version)s")
def cli() -> None:
    """Takes the media of SIP calls off the relay server."""


def _asks_agent(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --api, --token-file and --json, and passes the command a Client."""

    @click.option("--api", envvar="SHUNT_API", default=_DEFAULT_API, show_default=True, metavar="URL", help="The operator daemon: http://HOST:PORT, https://HOST:PORT or unix:/PATH; also SHUNT_API.")
    @click.option("--token-file", type=click.Path(dir_okay=False), help="File whose first line is the API's token; also SHUNT_TOKEN.")
    @click.option("--json", "as_json", is_flag=True, help="Write JSON.")
    def wrapped(api: str, token_file: str | None, **arguments: Any) -> None:
        from shunt.cli.client import Client

        client = Client(api, _token(token_file))
        try:
            command(client=client, **arguments)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise client.unreadable(error) from error

    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    wrapped.__click_params__ = getattr(command, "__click_params__", []) + wrapped.__click_params__  # type: ignore[attr-defined]  # where click.option keeps its parameters
    return wrapped


def _token(token_file: str | None) -> str | None:
    if token_file is None:
        return os.environ.get("SHUNT_TOKEN") or None
    try:
        with open(token_file, encoding="utf-8") as stream:
            return stream.readline(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(plain(error, token_file)) from None


def _echo_json(value: Any, indent: int | None = 2) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def _load(path: str) -> Config:
    from shunt.config.load import ConfigError, load

    try:
        return load(path)
    except (ConfigError, OSError) as error:
        raise _not_loaded(path, error) from None


def _not_loaded(path: str, error: ConfigError | OSError) -> Failure:
    """Writes the errors of a configuration. Returns a failure with their number."""
    if isinstance(error, OSError):
        return Failure(plain(error, path))
    for line in error.lines():
        click.echo(line, err=True)
    count = len(error.problems)
    return Failure(f"{path} has {count} error{'' if count == 1 else 's'}")


async def _until_stopped(work: Coroutine[Any, Any, Any]) -> None:
    """Runs until done, SIGTERM or SIGINT. A second signal ends it at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise


def _serve(what: str, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a service to its end. Errors of the operating system or of its values become one line instead of a traceback."""
    try:
        asyncio.run(_until_stopped(start()))
    except (OSError, ValueError) as error:
        import logging

        logging.getLogger("shunt").debug("%s ended", what, exc_info=True)
        raise Failure(f"{what}: {plain(error)}") from None


@cli.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="The configuration.")
def agent(path: str) -> None:
    """Run the agent until SIGTERM or Ctrl-C: check the configuration and execute shunt-agent."""
    from shunt.cli import daemons

    config = _load(path)
    if not config.serves_agent:
        raise Failure(f"{path} names neither a relay nor conferences: the agent needs relays, builtin_relay or conference")
    daemons.become("shunt-agent", config.document())


def _become(path: str, daemon: str, section: str, *more: str) -> None:
    """Replaces this process by a daemon, with its section of the configuration and others."""
    from shunt.cli import daemons

    document = _load(path).document()
    if document[section] is None:
        raise Failure(f"{path} has no section {section}")
    daemons.become(f"shunt-{daemon}", {name: document[name] for name in (section, *more)})


@cli.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="The configuration.")
def relay(path: str) -> None:
    """Run the built-in relay (section builtin_relay) until SIGTERM or Ctrl-C: check the configuration and execute shunt-relay."""
    _become(path, "relay", "builtin_relay", "learning", "notify", "log")


@cli.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="The configuration.")
def edge(path: str) -> None:
    """Run the edge for browsers (section edge) until SIGTERM or Ctrl-C: check the configuration and execute shunt-edge."""
    _become(path, "edge", "edge", "log")


@cli.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="The configuration.")
def mixer(path: str) -> None:
    """Run a mixer of conferences (section mixer) until SIGTERM or Ctrl-C: check the configuration and execute shunt-mixer."""
    _become(path, "mixer", "mixer", "log")


def _calls_up(config: Config | None) -> str:
    """Returns the number of calls that this host's operator daemon reports."""
    from shunt.cli.client import Client

    try:
        status = Client(os.environ.get("SHUNT_API") or (config.api.listen if config is not None and config.api is not None else _DEFAULT_API), os.environ.get("SHUNT_TOKEN")).get("/v1/status")
    except Failure:
        return "an unknown number of calls (no agent answers)"
    return f"{status['calls']} calls"


def _unload(folders: Sequence[str], config: Config | None, yes: bool) -> NoReturn:
    """Replaces this process by the softswitch's program, which removes what is pinned in these folders from the kernel."""
    from shunt.cli import daemons

    left = [folder for folder in folders if os.path.exists(folder)]
    if not left:
        click.echo("there is nothing to unload")
        sys.exit(0)
    consent(f"The media of {_calls_up(config)} goes back to the relay, and conferences lose theirs: programs and entries in {', '.join(left)} are removed", yes)
    daemons.unload(left)


@cli.command()
@click.option("-c", "--config", "path", metavar="FILE", help="Configuration with a softswitch section. The options below override it.")
@click.option("--interface", "interfaces", multiple=True, metavar="NAME", help="Interface on which media arrives or leaves; may be repeated.")
@click.option("--listen", multiple=True, metavar="ADDRESS", help="Where BF Runtime is served: unix:/PATH or ADDRESS:PORT; may be repeated.  [default: unix:/run/shunt-softswitch/bfrt.sock]")
@click.option("--capacity", type=click.IntRange(1, 16_777_216), metavar="N", help="Entries of the relay table.  [default: 262144]")
@click.option("--mode", type=click.Choice(["auto", "native", "generic"]), help="XDP mode.  [default: auto]")
@click.option("--pin-dir", metavar="DIR", help="Where programs and maps are pinned.  [default: /sys/fs/bpf/shunt]")
@click.option("--unload", is_flag=True, help="Remove what a stopped softswitch left in the kernel, and exit. Without -c and --pin-dir: in every folder of a BPF file system.")
@YES
def softswitch(path: str | None, unload: bool, yes: bool, **options: Any) -> None:
    """Run the Linux data plane until SIGTERM or Ctrl-C. Needs root.

    At its end, programs and entries stay in the kernel and forward packets. --unload removes them and restores the interfaces' offloads. It needs
    --yes or an answer at the terminal.
    """
    from pydantic import ValidationError

    from shunt.cli import daemons
    from shunt.config.model import Log, Softswitch

    config = _load(path) if path is not None else None
    section = config.softswitch if config is not None else None
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items() if value}
    if unload and path is None:
        folders = [str(options["pin_dir"])] if options["pin_dir"] else daemons.pin_dirs()
        _unload(folders, config, yes)
    if section is None and "interfaces" not in given:
        raise Failure(f"{path} has no softswitch section; give --interface" if path else "give -c FILE or --interface", EXIT_USAGE)
    try:
        settings = Softswitch.model_validate((section.model_dump() if section is not None else {}) | given)
    except ValidationError as error:
        first = error.errors()[0]
        raise Failure(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}", EXIT_USAGE) from None
    if unload:
        _unload([settings.pin_dir], config, yes)
    log = config.log if config is not None else Log()
    document = {"softswitch": settings.model_dump(mode="json"), "log": log.model_dump(mode="json")}
    daemons.become("shunt-softswitch", document)


@cli.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="The configuration.")
def operator(path: str) -> None:
    """Run the operator daemon until SIGTERM or Ctrl-C: REST API, web page, history, call records, Homer reports, SIP of conferences.

    It reads the sections admin, operator, api, history, cdr, homer, quality, log, rooms and conference.
    """
    config = _load(path)
    from shunt.cli import logs
    from shunt.operator.daemon import run as run_operator

    logs.configure(config.log.level, config.log.format)
    _serve("operator", lambda: run_operator(config))


def _compare_time_outs(config: Config, sip_servers: tuple[str, ...]) -> None:
    from pathlib import Path

    from shunt.config import sip_server

    texts = {path: Path(path).read_text(encoding="utf-8", errors="replace") for path in sip_servers}
    found = [sip_server.compared(config.control.sip_timeout_ms, text, path) for path, text in texts.items()]
    for message, is_error in filter(None, found):
        click.echo(message if is_error else f"warning: {message}", err=True)
    if any(problem and problem[1] for problem in found):
        sys.exit(EXIT_PROBLEM)


@cli.command("check-config")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Write JSON: {valid, errors: [{line, column, key, message}], warnings: [the same], config}.")
@click.option(
    "--sip-server",
    "sip_servers",
    multiple=True,
    metavar="CFG",
    type=click.Path(exists=True, dir_okay=False),
    help="Compare control.sip_timeout_ms with this file of OpenSIPS or Kamailio; may be repeated.",
)
def check_config(file: str, as_json: bool, sip_servers: tuple[str, ...]) -> None:
    """Check a configuration FILE: errors with line and column, and interfaces that this host lacks.

    Warnings do not change the exit code: a data plane, a program or conferences that the file's own softswitch does not serve.
    """
    from shunt.config.load import ConfigError, Problem, load_for_host
    from shunt.config.model import dotted

    def written(problems: list[Problem]) -> list[dict[str, Any]]:
        return [{"line": p.line, "column": p.column, "key": dotted(p.where) if p.where else None, "message": p.message} for p in problems]

    try:
        config, warnings, lacking = load_for_host(file)
    except (ConfigError, OSError) as error:
        if not as_json:
            raise _not_loaded(file, error) from None
        if isinstance(error, ConfigError):
            problems = written(error.problems)
        else:
            problems = [{"line": None, "column": None, "key": None, "message": plain(error, file)}]
        _echo_json({"valid": False, "errors": problems, "warnings": [], "config": None})
        sys.exit(EXIT_PROBLEM)
    if as_json:
        _echo_json({"valid": not lacking, "errors": written(lacking), "warnings": written(warnings), "config": config.document()})
        sys.exit(EXIT_PROBLEM if lacking else 0)
    for warning in warnings:
        click.echo(warning.text(file, "warning: "), err=True)
    for problem in lacking:
        click.echo(problem.text(file), err=True)
    if lacking:
        raise Failure(f"{file} does not fit this host")
    _compare_time_outs(config, sip_servers)
    click.echo(f"{file}: no errors")


@cli.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="The configuration.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON: {summary: {ok, warn, fail, unknown}, checks: [{group, verdict, subject, found, advice}]}.")
def doctor(path: str, as_json: bool) -> None:
    """Check whether this host meets a configuration: one line for each check, with ok, warn, fail or unknown, the finding and the remedy.

    Changes nothing. As root it also sees packet filters and which process holds a socket. Exit code 1: a check failed.
    """
    config = _load(path)
    from shunt.cli import doctor as looking
    from shunt.doctor import finding

    groups = looking.find(config)
    if as_json:
        _echo_json(finding.document(groups))
    else:
        looking.write(groups)
    if finding.failed(groups):
        sys.exit(EXIT_PROBLEM)


@cli.command()
@click.option("--state", type=click.Choice([state.value for state in State]), metavar="STATE", help="Only calls with a stream in this state (`shunt reasons` lists them).")
@click.option("--reason", type=click.Choice(sorted(REASONS)), metavar="REASON", help="Only calls with a stream with this reason.")
@click.option("--problems", is_flag=True, help="Only calls with a problem now: one-way, silent, contested, loss, a low MOS.")
@click.option("--watch", is_flag=True, help="Repeat every second until Ctrl-C; with --json one line each time.")
@_asks_agent
def calls(client: Client, as_json: bool, state: str | None, reason: str | None, problems: bool, watch: bool) -> None:
    """List the calls, what carries their RTP streams, and the worst loss, jitter and MOS of each.

    Exit code 1 with --problems: a call has a problem.
    """
    from shunt.cli import show

    try:
        while True:
            found = list(client.calls(state, reason, problems))
            if watch and not as_json:
                click.clear()  # does nothing off a terminal
            if as_json:
                _echo_json({"calls": found}, None if watch else 2)
            else:
                show.calls(found)
            if not watch:
                if problems and found:
                    sys.exit(EXIT_PROBLEM)
                return
            sys.stdout.flush()
            time.sleep(1)
    except KeyboardInterrupt:
        click.echo()


@cli.command()
@click.argument("text", default="")
@click.option("--since", type=Moment(), metavar="TIME", help="Only calls that lasted until TIME or later: 90s, 10m, 2h, 1d ago, or 2026-11-25T14:30.")
@click.option("--until", type=Moment(), metavar="TIME", help="Only calls that began before TIME.")
@click.option("--over/--running", default=None, help="Only finished calls, or only running ones.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="Most calls to list, latest first.")
@_asks_agent
def find(client: Client, as_json: bool, text: str, since: int | None, until: int | None, over: bool | None, limit: int) -> None:
    """Find calls by a part of From, To or Call-ID, including finished ones. Needs copies of SIP (HEP).

    Exit code 1: no call was found.
    """
    from shunt.cli import show

    found = client.find(text, since, until, over, limit)
    if as_json:
        _echo_json({"calls": found})
    else:
        show.found(found, limit)
    if not found:
        sys.exit(EXIT_PROBLEM)


@cli.command()
@click.argument("call_id", metavar="CALL-ID")
@_asks_agent
def why(client: Client, as_json: bool, call_id: str) -> None:
    """Explain what carries each stream of a call, and why."""
    from shunt.cli import show

    try:
        call = client.why(call_id)
    except Failure as failure:
        if failure.status != 503:
            raise
        # The rest of the answer is needed most when the data plane is down.
        click.echo(f"shunt: counters are not fresh: {failure.message}", err=True)
        call = client.call(call_id)
    if as_json:
        _echo_json(call)
    else:
        show.why(call)


@cli.command()
@click.argument("call_id", metavar="CALL-ID")
@_asks_agent
def history(client: Client, as_json: bool, call_id: str) -> None:
    """Show a call's history: media problems in words, then every SIP message, relay command, learn notice and table write."""
    from shunt.cli import history

    found = client.history(call_id)
    if as_json:
        _echo_json(found)
    else:
        history.write(found)


@cli.command()
@click.argument("target", metavar="CALL-ID|FILTER")
@click.option("-w", "file", metavar="FILE", default=None, help="File, or - for a pipe.  [default: shunt-TIME.pcapng]")
@click.option("--for", "seconds", type=Duration(), default="10m", show_default=True, metavar="TIME", help="At most 1h.")
@click.option("--packets", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N", help="Most packets.")
@click.option("--bytes", "most_bytes", type=click.IntRange(min=1), default=1_000_000_000, show_default=True, metavar="N", help="Most bytes.")
@click.option("--rtcp-only", is_flag=True, help="Only RTCP.")
@click.option("--headers-only", is_flag=True, help="Without payload.")
@click.option("--admin", "socket", default="/run/shunt/admin.sock", show_default=True, metavar="PATH", help="Admin socket.")
@click.option("--json", "as_json", is_flag=True, help="Summary as JSON to standard error.")
def capture(target: str, file: str | None, seconds: int, **options: Any) -> None:
    """Write what the softswitch forwards for calls to a pcapng file, with SIP from HEP. Ends with the call of CALL-ID.

    FILTER: call=TEXT or address=ADDRESS[:PORT]. Exit code 1: no packet, or some are missing.
    """
    from shunt.cli import capture

    capture.run(target, file, seconds, **options)


@cli.command()
@click.option("--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, metavar="SECONDS", help="Time between two updates.")
@click.option("--once", is_flag=True, help="Write one view and exit.")
@_asks_agent
def top(client: Client, as_json: bool, interval: float, once: bool) -> None:
    """Show calls, streams, packets per second and relays, live. q quits."""
    if as_json:
        _echo_json({"status": client.get("/v1/status"), "calls": list(client.calls(None, None))})
        return
    from shunt.cli import top as view

    try:
        view.run(client, interval, once)
    except KeyboardInterrupt:
        click.echo()


@cli.command()
@click.argument("src")
@click.argument("dst")
@_asks_agent
def trace(client: Client, as_json: bool, src: str, dst: str) -> None:
    """Ask the data plane where it would send a packet, and why.

    SRC and DST are ADDRESS:PORT or [IPV6-ADDRESS]:PORT.
    """
    from shunt.cli import show
    from shunt.net import Endpoint

    for name, text in (("SRC", src), ("DST", dst)):
        try:
            Endpoint.parse(text)
        except ValueError as error:
            raise Failure(f"{name}: {error}", EXIT_USAGE) from None
    answer = client.get("/v1/trace", src=src, dst=dst)
    if as_json:
        _echo_json(answer)
    else:
        show.trace(src, dst, answer)
    if answer["data_plane"] is None:
        raise Failure("the data plane could not be asked: none is configured, or it is not connected (`shunt status`)")


@cli.command()
@_asks_agent
def status(client: Client, as_json: bool) -> None:
    """Show the agent, its relays and its data plane.

    Exit code 1: there is a problem, in a line that begins with "!!".
    """
    from shunt.cli import show

    answer = client.get("/v1/status")
    if as_json:
        _echo_json(answer)
    else:
        show.status(answer)
    if show.attention(answer):
        sys.exit(EXIT_PROBLEM)


@cli.command()
@click.argument("stop", required=False, type=click.Choice(["offloads", "calls", "nothing"]))
@click.option("--wait", is_flag=True, help="Return when the agent is empty.")
@YES
@_asks_agent
def drain(client: Client, as_json: bool, stop: str | None, wait: bool, yes: bool) -> None:
    """Drain the agent before maintenance: no new stream is offloaded, and the relay carries the media of new calls.

    The agent is empty when no entry is left ("offloads"), or no call either ("calls"). "nothing" ends draining. Without an argument: show what is left.
    While there are calls, draining needs --yes or an answer at the terminal.
    """
    from shunt.cli import drain as draining

    if stop in ("offloads", "calls") and (left := client.get("/v1/drain"))["calls"]:
        consent(f"No new stream is offloaded: the relay carries the media of new calls. The {left['calls']} running calls continue, with {left['entries']} entries", yes)
    answer = draining.drain(client, stop, wait, (lambda _: None) if as_json else draining.echo)
    if as_json:
        _echo_json(answer)
    else:
        draining.echo(answer)


_STATES = {
    "allocated": "The relay has given out ports; the call has no answer yet.",
    "learning": "The agent is finding out where a party's packets come from; the relay carries them meanwhile.",
    "offloaded": "The data plane carries the stream.",
    "suspended": "The relay carries the stream; the reason says why, and for how long.",
    "released": "The stream has ended.",
}


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Write JSON: {states, reasons}.")
def reasons(as_json: bool) -> None:
    """List and explain every state and reason."""
    from shunt.cli import show

    if as_json:
        _echo_json({"states": _STATES, "reasons": REASONS})
        return
    show.table(("STATE", "MEANING"), _STATES.items())
    click.echo()
    show.table(("REASON", "MEANING"), REASONS.items())


def main() -> None:
    """Entry point of the `shunt` command."""
    for stream in (sys.stdout, sys.stderr):
        # A Call-ID may hold what the terminal's encoding cannot write.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper, which typeshed calls TextIO
    cli(prog_name="shunt")


if __name__ == "__main__":
    main()
