"""Pictures that say who shows them and the how many-th they are, so that a frame that is not what was shown is found in the browser that shows it.

A picture is 24 fields, black or white: 16 bits of its number, 4 of who shows it, 4 of a sum. A field that is grey, or a sum that is wrong, is a corrupt frame.
"""

from __future__ import annotations

import json
from typing import Any

from tests.lab.browser import Browser

RATE = 15  # pictures a second

_SHOW = """((whose, rate, noise) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 480, height: 270 });
  const to = canvas.getContext("2d", { alpha: false });
  let number = 0;
  const draw = () => {
    number = (number + 1) & 0xffff;
    let sum = whose;
    for (let at = 0; at < 16; at += 4) sum += number >> at;
    const bits = (number << 8) | (whose << 4) | (sum & 15);
    for (let field = 0; field < 24; field++) {
      to.fillStyle = (bits >> (23 - field)) & 1 ? "#fff" : "#000";
      to.fillRect(60 * (field % 8), 90 * Math.floor(field / 8), 60, 90);
    }
    for (let row = 0; noise && row < 3; row++) {
      const strip = to.createImageData(480, noise);
      for (let at = 0; at < strip.data.length; at++) strip.data[at] = at % 4 === 3 ? 255 : 256 * Math.random();
      to.putImageData(strip, 0, 90 * row);
    }
  };
  draw();
  setInterval(draw, 1000 / rate);
  room.tracks.video.stop();
  room.tracks.video = canvas.captureStream(rate).getVideoTracks()[0];
  document.querySelector("#preview").srcObject = new MediaStream([room.tracks.video]);
})"""

_WATCH = """(() => {
  if (window.watched) return;
  window.watched = {};
  const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 36 });
  const from = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  const read = (video) => {
    from.drawImage(video, 0, 0, 64, 36);
    const pixels = from.getImageData(0, 0, 64, 36).data;
    let bits = 0;
    for (let field = 0; field < 24; field++) {
      let least = 255, most = 0;
      for (let y = 4; y < 8; y++) for (let x = 2; x < 6; x++) {
        const luma = pixels[4 * (64 * (12 * Math.floor(field / 8) + y) + 8 * (field % 8) + x) + 1];
        least = Math.min(least, luma);
        most = Math.max(most, luma);
      }
      if (!(most < 90 || least > 165)) return null;
      bits = (bits << 1) | (least > 165);
    }
    const number = (bits >> 8) & 0xffff, whose = (bits >> 4) & 15;
    let sum = whose;
    for (let at = 0; at < 16; at += 4) sum += number >> at;
    // All fields black are nobody's.
    return (sum & 15) === (bits & 15) ? [whose, number] : null;
  };
  const look = () => {
    for (const [key, tile] of room.tiles.all) {
      if (!key.endsWith("/video") || tile.looked) continue;
      tile.looked = true;
      const found = (window.watched[key] ??= { seen: 0, corrupt: 0, whose: {}, longest_ms: 0, last: 0 });
      const next = (now) => {
        const got = tile.video.videoWidth ? read(tile.video) : null;
        tile.video.requestVideoFrameCallback(next);
        // A browser may begin with black before its camera's first picture; after that black is none.
        if (got && !got[0] && !Object.keys(found.whose).length) return;
        found.seen++;
        if (got && got[0]) found.whose[got[0]] = (found.whose[got[0]] ?? 0) + 1;
        else found.corrupt++;
        if (found.last) found.longest_ms = Math.max(found.longest_ms, now - found.last);
        found.last = now;
      };
      tile.video.requestVideoFrameCallback(next);
    }
  };
  look();
  setInterval(look, 100);
})()"""


def show(browser: Browser, whose: int, rate: int = RATE, noise: int = 0) -> None:
    """Before it joins: what its camera shows are such pictures. whose: 1 to 15; noise: lines of it (up to 20) at the top of each row of fields, so that the pictures take bits to encode."""
    browser.evaluate(f"void {_SHOW}({whose}, {rate}, {noise})")


def watch(browser: Browser) -> None:
    """Read every frame that the room's tiles show from now on."""
    browser.evaluate(f"void {_WATCH}")


def watched(browser: Browser) -> dict[str, dict[str, Any]]:
    """By tile: frames seen, corrupt ones, how many were whose, and the longest time between two."""
    found: dict[str, dict[str, Any]] = browser.evaluate("window.watched")
    return found


def await_frames(browser: Browser, *names: str, count: int = 10, seconds: float = 120.0) -> None:
    """Wait until so many further frames of all of these are shown. Raises LabError."""
    keys = json.dumps([f"{name}/video" for name in names])
    before = browser.evaluate(f"Object.fromEntries({keys}.map((key) => [key, window.watched?.[key]?.seen ?? 0]))")
    browser.await_that(f"{keys}.every((key) => (window.watched?.[key]?.seen ?? 0) >= {json.dumps(before)}[key] + {count})", seconds)
