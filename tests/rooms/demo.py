"""`make demo-browsers`: three browsers and a SIP phone in one room, encrypted, with nothing in the browsers changed; every frame that they show is read.

    python -m tests.rooms.demo [--seconds 30]

Writes build/demo-browsers/report.json and ends with status 0 only if everybody saw and heard everybody, and no frame was corrupt.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Any

from tests.conference_control.lab import Phone, sip_server
from tests.lab.browser import CHROMIUM, FIREFOX, Browser, missing
from tests.lab.party import come_to_rest
from tests.lab.processes import ROOT
from tests.lab.topology import LabError
from tests.rooms import lab, pictures
from tests.rooms.lab import RoomLab, hears, lobby, report, room_lab, sees

OUTPUT = ROOT / "build" / "demo-browsers"
ROOM = "room"  # its name begins as those of rooms that phones call
PEOPLE = (("ann", "caller", CHROMIUM), ("bob", "callee", FIREFOX), ("cem", "natcaller", CHROMIUM))
_PICTURE_S = 120.0


def enter(room: RoomLab, browser: Browser, whose: int, others: list[str]) -> float | None:
    """Come in with pictures of one's own; milliseconds from the click to the first picture of anybody."""
    lobby(browser, room.link(ROOM)["page"])
    pictures.show(browser, whose)
    browser.click("#join")
    browser.await_that("Boolean(room.session?.path)", _PICTURE_S)
    pictures.watch(browser)
    if not others:
        return None
    sees(browser, *others, seconds=_PICTURE_S)
    browser.await_that("room.times.picture !== null", _PICTURE_S)
    taken: float = report(browser)["join_ms"]
    return taken


def gaps(phone: Phone) -> tuple[int, int]:
    """Packets that a phone got, and those missing between them."""
    got = missed = 0
    for numbers in phone.party.sequences.values():
        got += len(numbers)
        missed += sum(max(0, ((after - before) & 0xFFFF) - 1) for before, after in zip(numbers, numbers[1:]) if (after - before) & 0xFFFF < 0x8000)
    return got, missed


def run(seconds: float) -> dict[str, Any]:
    """The whole of it; the report. Raises LabError."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    with room_lab(OUTPUT) as room:
        room.ask("POST", f"/v1/conferences?name={ROOM}")
        room.await_ready()
        room.move_focus("127.0.0.1")
        sip = sip_server(room)
        try:
            print("browsers start")
            browsers = [room.browser(host, name, kind) for name, host, kind in PEOPLE]
            phone = Phone(room, "callee", "dora", server=5060)
            phone.party.payload_type, phone.party.gap_s = 0, 0.02
            if (status := phone.call(ROOM)) != 200:
                raise LabError(f"the phone is answered with {status}: {phone.answer}")
            join_ms = {}
            for whose, browser in enumerate(browsers, 1):
                join_ms[browser.name] = enter(room, browser, whose, [one.name for one in browsers[: whose - 1]])
                print(f"{browser.name} ({browser.kind}) is in" + (f", first picture after {join_ms[browser.name]:.0f} ms" if join_ms[browser.name] else ""))
            for browser in browsers:
                others = [one.name for one in browsers if one is not browser]
                sees(browser, *others)
                hears(browser, *others, "dora")
            print(f"everybody sees and hears everybody; {seconds:g} s of talk")
            before = {browser.name: report(browser) for browser in browsers}
            time.sleep(seconds)
            found = _report(room, browsers, phone, join_ms, before, seconds)
            for browser in browsers:
                browser.picture(OUTPUT / f"{browser.name}.png")
            phone.bye()
            for browser in browsers:
                browser.click("#leave")
            found["left_behind"] = {"participants": _left(room), "sessions": len(room.at_edge())}
            return found
        finally:
            sip.stop()


def _left(room: RoomLab) -> int:
    come_to_rest(lambda: len(room.names(ROOM)))
    return len(room.names(ROOM))


def _report(room: RoomLab, browsers: list[Browser], phone: Phone, join_ms: dict[str, float | None], before: dict[str, Any], seconds: float) -> dict[str, Any]:
    people, freezes, frozen_since, lost, corrupt, frames, strangers = {}, 0, 0, 0, 0, 0, 0
    numbers = {browser.name: str(whose) for whose, browser in enumerate(browsers, 1)}
    for browser in browsers:
        now, seen = report(browser), pictures.watched(browser)
        for key, line in now["lines"].items():
            lost += max(0, line["packetsLost"])
            if line["kind"] == "video":
                freezes += line["freezes"]
                frozen_since += line["freezes"] - (before[browser.name]["lines"].get(key) or {"freezes": 0})["freezes"]
        for key, one in seen.items():
            frames, corrupt = frames + one["seen"], corrupt + one["corrupt"]
            strangers += sum(count for whose, count in one["whose"].items() if whose != numbers[key.partition("/")[0]]) if key.partition("/")[0] in numbers else 0
        people[browser.name] = {"browser": browser.kind, "join_ms": join_ms[browser.name], "frames": seen, "lines": now["lines"], "quality": now["quality"], "sessions": now["sessions"]}
    got, missed = gaps(phone)
    taken = [one for one in join_ms.values() if one is not None]
    return {
        "join_ms": round(max(taken), 1),
        "freezes": freezes,
        "lost": lost + missed,
        "corrupt_frames": corrupt + strangers,
        "freezes_after_joining": frozen_since,
        "frames": frames,
        "seconds": seconds,
        "phone": {"packets": got, "lost": missed},
        "people": people,
    }


def main() -> int:
    """Run it, write and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="how long everybody talks")
    seconds = parser.parse_args().seconds
    if lacks := "; ".join(filter(None, (missing(CHROMIUM, FIREFOX), lab.lacking()))):
        print(lacks, file=sys.stderr)
        return 1
    found = run(seconds)
    (OUTPUT / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps({name: found[name] for name in ("join_ms", "freezes", "lost", "corrupt_frames", "freezes_after_joining", "frames", "seconds", "left_behind")}, indent=2))
    print(f"the rest is in {OUTPUT / 'report.json'}")
    whole = found["corrupt_frames"] == 0 and found["frames"] > 0 and not any(found["left_behind"].values())
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
