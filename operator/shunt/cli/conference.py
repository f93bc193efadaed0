"""`shunt conference create|join|leave|quality|target|mixed|tiled|announcements|list|watch|end` use the REST API; `capacity` does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from shunt.cli.capacity import (
    LAYER_ROWS,
    SET,
    Design,
    Limits,
    Load,
    Tables,
    capacity,
    paper,
)
from shunt.cli.consent import YES, consent
from shunt.cli.main import _asks_agent, _Command

if TYPE_CHECKING:
    from shunt.cli.client import Client
    from shunt.cli.conference_client import ConferenceClient

EVENTS = 8
TARGETS = 3
_MEDIA = click.Choice(["audio", "video", "screen"])
_SIZING_EXIT_CODES = "Exit codes: 0 all is well; 2 wrong usage."
_LIMITS = Limits()


@click.group(epilog=_SIZING_EXIT_CODES)
def conference() -> None:
    """Conferences: add and remove participants, watch, and compute what fits into a replication engine."""


def _of(client: Client) -> ConferenceClient:
    """The agent's conferences. Imported late, because the HTTP client slows --help down."""
    from shunt.cli.conference_client import ConferenceClient

    return ConferenceClient(client)


def _write(value: Any, as_json: bool, text: str) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2) if as_json else text)


def _media(participant: dict[str, Any]) -> str:
    return "   ".join(f"{leg['medium']} {leg['relay']}" for leg in participant["media"])


@conference.command("create", cls=_Command)
@click.argument("name")
@_asks_agent
def create(client: Client, as_json: bool, name: str) -> None:
    """Create an empty conference."""
    _write(_of(client).create(name), as_json, f"{name} is there")


@conference.command("join", cls=_Command)
@click.argument("name")
@click.argument("participant")
@click.option(
    "--media",
    multiple=True,
    metavar="MEDIUM",
    default=["audio"],
    show_default=True,
    help="A medium to send and receive: audio, video, screen. video/2 and so on: a further address for the video of one sender. May be repeated.",
)
@click.option("--ice", is_flag=True, help="Use ICE: the answer has the agent's ICE credentials, and the agent answers checks.")
@click.option("--transport", default="RTP/AVP", show_default=True, help="Transport of the media, as in SDP. Layers of SRTP video are not removed.")
@click.option(
    "--layers", multiple=True, metavar="MEDIUM=WAY", help="Where video packets describe their layers: video=dependency-descriptor:12 (the header extension's id), =frame-marking:ID, =vp8, =vp9."
)
@click.option("--trusted", multiple=True, metavar="ADDRESS", help="Address from which media is latched at once. Any other source must send several packets in sequence.")
@_asks_agent
def join(client: Client, as_json: bool, name: str, participant: str, media: tuple[str, ...], trusted: tuple[str, ...], ice: bool, transport: str, layers: tuple[str, ...]) -> None:
    """Add a participant and print where it sends its media."""
    answer = _of(client).join(name, participant, media, trusted=trusted, ice=ice, transport=transport, layers=layers)
    credentials = f"   ICE ufrag {answer['ice']['ufrag']} pwd {answer['ice']['pwd']}" if ice else ""
    _write(answer, as_json, f"{participant} sends to   {_media(answer)}{credentials}")


@conference.command("leave", cls=_Command)
@click.argument("name")
@click.argument("participant")
@_asks_agent
def leave(client: Client, as_json: bool, name: str, participant: str) -> None:
    """Remove a participant."""
    _write(_of(client).leave(name, participant), as_json, f"{participant} has left {name}")


@conference.command("quality", cls=_Command)
@click.argument("name")
@click.argument("sender")
@click.argument("receiver")
@click.argument("quality", type=_MEDIA)
@_asks_agent
def set_quality(client: Client, as_json: bool, name: str, sender: str, receiver: str, quality: str) -> None:
    """Set how much of SENDER's media RECEIVER gets: audio, video (with audio), or screen (all)."""
    answer = _of(client).set_quality(name, sender, receiver, quality)
    _write(answer, as_json, f"{receiver} gets up to {quality} of {sender}")


@conference.command("target", cls=_Command)
@click.argument("name")
@click.argument("sender")
@click.argument("receiver")
@click.argument("target", type=click.Choice([*map(str, range(TARGETS)), "pause", "auto"]))
@_asks_agent
def set_target(client: Client, as_json: bool, name: str, sender: str, receiver: str, target: str) -> None:
    """Set the share of SENDER's video frames that RECEIVER gets: 0 the fewest, 2 all, pause none. auto: the policy decides again."""
    answer = _of(client).set_target(name, sender, receiver, target)
    _write(answer, as_json, f"{receiver} gets target {target} of {sender}")


@conference.command("mixed", cls=_Command)
@click.argument("name")
@click.argument("participant")
@click.argument("mixed", type=click.Choice(["auto", "yes", "no"]))
@_asks_agent
def set_mixed(client: Client, as_json: bool, name: str, participant: str, mixed: str) -> None:
    """Set whether PARTICIPANT gets the mix of all other senders' audio. auto: yes if it plays one stream only, or lacks a sender's codec."""
    answer = _of(client).set_mixed(name, participant, mixed)
    now = next((one["gets_mix"] for one in answer["participants"] if participant in (one["id"], one["name"])), False)
    _write(answer, as_json, f"{participant} {'gets a mix' if now else 'gets separate senders'}")


@conference.command("tiled", cls=_Command)
@click.argument("name")
@click.argument("codec", type=click.Choice(["H261", "H264", "H265", "none"]))
@click.option(
    "--receiver", "receivers", multiple=True, metavar="PARTICIPANT", help="Participant that gets the tiled streams, now or after it joins; may be repeated. Default: all that can play the codec."
)
@click.option("--payload-type", type=click.IntRange(0, 127), metavar="NUMBER", help="Payload type of the tiled streams. Default: 31 for H.261, 96 for H.264, 97 for H.265.")
@click.option("--places", type=click.IntRange(1, 255), metavar="NUMBER", help="Tiles of an H.264 column (default 15) or of an H.265 grid (default 16).")
@click.option("--columns", type=click.IntRange(2, 127), metavar="NUMBER", help="H.264 columns of a stream, each made by its own mixer and joined by another one. Default: one level of mixers.")
@click.option("--predicted", is_flag=True, help="Accept predicted H.264 or H.265 frames: all sources keep vectors within the picture or a guard band.")
@_asks_agent
def set_tiling(client: Client, as_json: bool, name: str, codec: str, receivers: tuple[str, ...], payload_type: int | None, places: int | None, columns: int | None, predicted: bool) -> None:
    """Replace the senders' video by a few streams, tiled by a mixer, that show all of them. none: each sender's own video again."""
    if codec == "none":
        answer = _of(client).end_tiling(name)
        _write(answer, as_json, "\n".join([f"{name}: each sender's own video again", *_unjoined(answer)]))
        return
    answer = _of(client).set_tiling(name, codec, payload_type=payload_type, places=places, columns=columns, predicted=predicted, receivers=receivers or None)
    _write(answer, as_json, "\n".join(_tiling(answer["tiling"])))


@conference.command("announcements", cls=_Command)
@click.argument("name")
@click.argument("wanted", type=click.Choice(["yes", "no"]))
@_asks_agent
def set_announcements(client: Client, as_json: bool, name: str, wanted: str) -> None:
    """Set whether receivers of a mix hear when participants join and leave (mixer.announcements)."""
    answer = _of(client).set_announcements(name, wanted == "yes")
    _write(answer, as_json, f"{name}: joins and leaves are " + ("announced" if answer["announcements"] else "not announced"))


@conference.command("end", cls=_Command)
@click.argument("name")
@YES
@_asks_agent
def end(client: Client, as_json: bool, name: str, yes: bool) -> None:
    """Remove all participants and end the conference. With participants it needs --yes or an answer at the terminal."""
    if count := len(_of(client).look(name)["participants"]):
        consent(f"The media of {count} participant{'' if count == 1 else 's'} of {name} ends; telephones get a BYE", yes)
    _write(_of(client).end(name), as_json, f"{name} is over")


@conference.command("list", cls=_Command)
@_asks_agent
def list_all(client: Client, as_json: bool) -> None:
    """List conferences."""
    found = _of(client).all()
    rows = [f"{one['name']:<24}{'?' if one['present'] is None else one['present']:>4} of {one['participants']:<4}{one['design']:<11}{one['problem']}" for one in found]
    _write({"conferences": found}, as_json, "\n".join(rows) or "no conferences")


@conference.command("watch", cls=_Command)
@click.argument("name")
@click.option("--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, metavar="SECONDS", help="Time between two updates.")
@click.option("--once", is_flag=True, help="Write one view and exit.")
@_asks_agent
def watch(client: Client, as_json: bool, name: str, interval: float, once: bool) -> None:
    """Show participants, their sources, packets and estimates of each sender and receiver, and the latest events, and repeat. With --json: one object per update."""
    try:
        for answer in _of(client).watch(name, interval):
            click.echo(json.dumps(answer, ensure_ascii=False, indent=2 if once else None) if as_json else text(answer))
            if once:
                return
    except KeyboardInterrupt:
        click.echo()


@conference.command("capacity", epilog=_SIZING_EXIT_CODES)
@click.option("--participants", type=click.IntRange(2, 32_767), metavar="N", default=10, show_default=True, help="Participants of each conference.")
@click.option("--senders", type=click.IntRange(1, 32_767), metavar="N", help="Senders among them. Default: all.")
@click.option("--adapted", type=click.IntRange(0, 32_767), metavar="N", help="Receivers of less than the top quality. Default: all.")
@click.option(
    "--qualities",
    type=click.IntRange(1, 8),
    metavar="N",
    default=SET,
    show_default=True,
    help="Trees of a set. The agent's sets have one for audio, three for video and three for the screen; the paper's have three.",
)
@click.option("--sender-rate", type=click.FloatRange(0, min_open=True), default=2.5e6, show_default="2.5 Mbit/s", metavar="BIT/S", help="Rate of all streams of one sender.")
@click.option("--line-rate", type=click.FloatRange(0, min_open=True), default=12.8e12, show_default="12.8 Tbit/s", metavar="BIT/S", help="Line rate of the switch.")
@click.option("--trees", type=click.IntRange(9, 65_536), metavar="N", default=_LIMITS.trees, show_default=True, help="MGIDs of the engine.")
@click.option("--nodes", type=click.IntRange(2), metavar="N", default=_LIMITS.nodes, show_default=True, help="L1 nodes of the engine.")
@click.option("--rewritten", "tracked", type=click.IntRange(0), metavar="N", default=_LIMITS.tracked, show_default=True, help="Streams with rewritten sequence numbers.")
@click.option("--conference-rows", type=click.IntRange(1), metavar="N", help="Rows of `conference`, one for each stream. Tables without a size do not limit.")
@click.option("--copy-rows", type=click.IntRange(1), metavar="N", help="Rows of `copy`: one for each receiver of each stream.")
@click.option("--layer-rows", type=click.IntRange(1), metavar="N", help=f"Rows of `layer`: {LAYER_ROWS} for each stream with layers.")
@click.option("--relay-rows", type=click.IntRange(1), metavar="N", help="Rows of `relay`, one for each stream of a conference of two.")
@click.option("--paper", "of_paper", is_flag=True, help="Only compare the four figures of the Scallop paper with Shunt's.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def capacity_command(
    participants: int,
    senders: int | None,
    adapted: int | None,
    qualities: int,
    sender_rate: float,
    line_rate: float,
    trees: int,
    nodes: int,
    tracked: int,
    conference_rows: int | None,
    copy_rows: int | None,
    layer_rows: int | None,
    relay_rows: int | None,
    of_paper: bool,
    as_json: bool,
) -> None:
    """Compute how many conferences fit with each design of replication trees, and which limit is met first."""
    if of_paper:
        rows = paper()
    else:
        load = Load(participants=participants, senders=senders, adapted=adapted, sender_rate=sender_rate)
        limits = Limits(trees=trees, nodes=nodes, tracked=tracked)
        try:
            tables = Tables(conference_rows, copy_rows, layer_rows, relay_rows)
            rows = [capacity(design, load, limits, qualities, line_rate, tables) for design in Design]
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps({"capacity": rows}, indent=2))
        return
    for row in rows:
        said = f"   the paper says {row['paper']}" if of_paper else ""
        others = ", ".join(f"{what} {count:,}" for what, count in sorted(row["allowed"].items(), key=lambda item: item[1]))
        click.echo(f"{row['design']:<10}{row['meetings']:>12,}{said}   ({others})")


def text(answer: dict[str, Any]) -> str:
    """Returns a conference as text, with names in place of identifiers."""
    answer = answer | _with_names({key: value for key, value in answer.items() if key != "participants"}, {one["id"]: one["name"] for one in answer["participants"]})
    lines = [f"{answer['name']}: {answer['design']}" + (f"   {answer['problem']}" if answer["problem"] else "")]
    for one in answer["participants"]:
        for leg in one["media"]:
            kept = f", {leg['direction']}" if leg["direction"] != "sendrecv" else ""
            kept += "".join(f", {ssrc:08x} repairs" for ssrc in leg["repair"])
            kept += "".join(f", {one['ssrc']:08x} is not forwarded: {one['owner']} owns this SSRC" for one in leg["conflicts"])
            kept += f", gets nothing: {leg['unreached']}" if leg["unreached"] else ""
            source = leg["source"] or ("contested" if leg["contested"] else "no source latched yet")
            whose = one["name"] if one["name"] == one["id"] else f"{one['name']} ({one['id']})"
            lines.append(f"  {whose:<16}{leg['medium']:<8}{source:<24} > {leg['relay']:<24}{leg['packets']:>10} packets" + kept)
    if answer["tiling"] is not None:
        lines += [f"  {line}" for line in _tiling(answer["tiling"])]
    lines += _unjoined(answer)
    for flow in answer["flows"]:
        packets = "-" if flow["packets"] is None else flow["packets"]
        lines.append(f"  {flow['sender']:<16}> {flow['receiver']:<16}{flow['medium']:<8}{flow['ssrc']:08x}{packets:>12}")
    for one in answer["downlinks"]:
        lines.append("  " + _downlink(one))
    lines += [f"  {event['time'][11:19]} {_event(event)}" for event in answer["happened"][-EVENTS:]]
    return "\n".join(lines)


_WHO = ("participant", "sender", "receiver", "owner")


def _with_names(value: Any, called: dict[str, str]) -> Any:
    """Returns an answer with names in place of identifiers. The event of a participant that has left has its name."""
    if isinstance(value, list):
        return [_with_names(one, called) for one in value]
    if not isinstance(value, dict):
        return value
    own = {value["participant"]: value["name"]} if "participant" in value and "name" in value else {}
    return {key: (called | own).get(one, one) if key in _WHO and isinstance(one, str) else _with_names(one, called) for key, one in value.items()}


def _tiling(tiling: dict[str, Any]) -> list[str]:
    """Returns the tiled streams as text: each tile's participant, and participants without a tile."""
    lines = [f"tiled {tiling['codec']} by {tiling['mixer'] or 'no mixer'}" + (f": {tiling['problem']}" if tiling["problem"] else "")]
    for stream in tiling["streams"]:
        for column in stream["columns"]:
            lines.append(f"  {stream['ssrc']:08x} column {column['column']} is {column['ssrc']:08x} by {column['mixer'] or 'no mixer'}")
        for tile in stream["tiles"]:
            area = "" if tile["x"] is None else f"at {tile['x']},{tile['y']} {tile['width']}x{tile['height']}"
            refusal = f", refused: {tile['refusal']}" if tile["refusal"] else ""
            lines.append(f"  {stream['ssrc']:08x} tile {tile['place']:<4}{tile['participant']:<16}{area:<20}{tile['pictures']:>10} pictures" + refusal)
    return lines + [f"  {one['participant']} has no tile: {one['reason']}" for one in tiling["untiled"]]


def _unjoined(answer: dict[str, Any]) -> list[str]:
    return [f"  {one['receiver']} gets no video of {one['sender']}: {one['reason']}" for one in answer["unjoined"]]


def _downlink(one: dict[str, Any]) -> str:
    """Returns the figures of one receiver of a sender's medium."""
    words = [f"{one['receiver']} gets of {one['sender']}'s {one['medium']}:"]
    words.append("nothing, paused" if one.get("paused") else "all" if one["target"] is None or one["target"] == one["targets"] - 1 else f"target {one['target']} of 0..{one['targets'] - 1}")
    if one["estimate"] is not None:
        words.append(f"can take {_kbit(one['estimate'])}")
    if one.get("loss_bound") is not None:
        words.append(f"losses limit it to {_kbit(one['loss_bound'])}")
    if one["rates"]:
        words.append("sent at " + "/".join(_kbit(rate) for rate in one["rates"]))
    if one["heard_by_sender"]:
        words.append(f"{one['sender']} gets this receiver's reports")
    return words[0] + " " + ", ".join(words[1:])


def _kbit(rate: float) -> str:
    return f"{rate / 1000:.0f}k"


def _event(event: dict[str, Any]) -> str:
    """Returns one event as text."""
    match event["what"]:
        case "target":
            up = (-1 if event["target"] is None else event["target"]) > (-1 if event["before"] is None else event["before"])
            now, before = ("nothing" if one is None else f"target {one}" for one in (event["target"], event["before"]))
            return f"{event['receiver']} gets {now} of {event['sender']} (was {before}): an estimate of {_kbit(event['estimate'])} {'fits' if up else 'allows no more'}"
        case "downlink":
            return f"{event['sender']} gets reports on its {event['medium']} from {event['receiver'] or 'nobody'}" + (f", no longer {event['before']}" if event.get("before") else "")
        case "source":
            return f"{event['participant']}'s {event['medium']} comes from {event['source'] or 'nobody certain'}"
        case "joined" | "left":
            return f"{event['participant']} has {event['what']}"
        case "ssrc-conflict":
            return f"{event['participant']}'s {event['medium']} {event['ssrc']:08x} is not forwarded: {event['owner']} sent this SSRC first"
        case "ssrc-free":
            return f"{event['participant']}'s {event['medium']} {event['ssrc']:08x} is no longer another participant's SSRC"
        case "no-route":
            return f"{event['participant']} gets no {event['medium']}: {event['detail']}"
        case "route":
            return f"{event['participant']}'s {event['medium']} can be reached"
        case "repair":
            usual = f", not {event['of']}" if "of" in event else ""
            return f"{event['participant']}'s {event['medium']} {event['ssrc']:08x} is treated as repair: its payload type is {event['payload_type']}{usual}; receivers of fewer layers do not get it"
        case "media":
            return f"{event['participant']} also has {' and '.join(event['media'])}"
        case "layout":
            tiles = ", ".join(tile["participant"] for stream in event["streams"] for tile in stream["tiles"])
            return f"tiles of {tiles or 'nobody'}" + "".join(f"; {one['participant']} has none: {one['reason']}" for one in event["untiled"])
        case "directions":
            media = event["media"] if "media" in event else {event["medium"]: event["direction"]}
            return f"{event['participant']}: " + ", ".join(f"{medium} {direction}" for medium, direction in media.items())
    return f"{event['what']}: {event.get('detail', '')}"
