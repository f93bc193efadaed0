"""Real browsers in network namespaces: headless Chromium by its DevTools protocol, headless Firefox by WebDriver BiDi. Both are JSON over a WebSocket.

Encryption is as everybody has it. What differs from a desktop: a made-up camera and microphone that nobody is asked about, and a certificate that
no authority has signed is taken (WebDriver's acceptInsecureCerts).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.lab.needs import lacking
from tests.lab.processes import Process, open_socket
from tests.lab.topology import LabError, Topology

CHROMIUM, FIREFOX = "chromium", "firefox-esr"
_START_S = 60.0
_ANSWER_S = 60.0
_CHROMIUM = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required", "--remote-debugging-port=0", "--window-size=1280,800",
    "--disable-renderer-backgrounding", "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--remote-allow-origins=*",
)  # fmt: skip
_FIREFOX = {
    "media.navigator.streams.fake": True, "media.navigator.permission.disabled": True, "media.autoplay.default": 0, "media.autoplay.blocking_policy": 0,
    "media.getusermedia.screensharing.enabled": True, "datareporting.policy.dataSubmissionEnabled": False, "toolkit.telemetry.enabled": False, "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False, "browser.startup.page": 0, "network.captive-portal-service.enabled": False, "network.connectivity-service.enabled": False,
    "remote.active-protocols": 1, "media.gmp-manager.updateEnabled": False, "extensions.update.enabled": False, "browser.safebrowsing.provider.mozilla.updateURL": "",
}  # fmt: skip


def missing(*browsers: str) -> str:
    """Why these browsers cannot be run here; empty: they can."""
    return lacking(*browsers, root=False) or ""


class Browser:
    """One browser with one tab."""

    def __init__(self, topology: Topology, host: str, name: str, kind: str, work: Path) -> None:
        """host: whose network namespace; kind: CHROMIUM or FIREFOX; work: folder for its profile and log. Raises LabError where it does not start."""
        self.name, self.kind, self.host, self._topology = name, kind, host, topology
        self.home = work / f"browser-{name}"
        self.home.mkdir(parents=True, exist_ok=True)
        self._loop = asyncio.new_event_loop()
        self._number = 0
        self._context = ""
        argv = [CHROMIUM, *_CHROMIUM, f"--user-data-dir={self.home}", "about:blank"]
        if kind == FIREFOX:
            (self.home / "user.js").write_text("".join(f"user_pref({json.dumps(key)}, {json.dumps(value)});\n" for key, value in _FIREFOX.items()))
            argv = [FIREFOX, "--headless", "--no-remote", "--profile", str(self.home), "--remote-debugging-port", "0", "about:blank"]
        env = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home), "MOZ_HEADLESS": "1", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nonexistent"}
        self.process = Process(topology, host, f"{kind} {name}", argv, self.home / "browser.log", env)
        self._session: aiohttp.ClientSession | None = None
        self._wire: aiohttp.ClientWebSocketResponse | None = None

    def start(self) -> "Browser":
        """Start it, and have a tab."""
        self.process.log.unlink(missing_ok=True)  # it says where this one listens
        self.process.start()
        self._run(self._connect())
        return self

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, _ANSWER_S))

    # -- the wire ------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        address = await self._address()
        connector = aiohttp.TCPConnector(socket_factory=lambda info: self._socket(info[0]))
        self._session = aiohttp.ClientSession(connector=connector)
        if self.kind == FIREFOX:
            self._wire = await self._session.ws_connect(f"{address}/session", max_msg_size=0)
            await self._ask("session.new", capabilities={"alwaysMatch": {"acceptInsecureCerts": True}})
            contexts = (await self._ask("browsingContext.getTree"))["contexts"]
            self._context = contexts[0]["context"]
        else:
            async with self._session.get(re.sub(r"^ws(.*?:\d+).*", r"http\1/json", address)) as response:
                tab = next(one for one in await response.json() if one["type"] == "page")
            self._wire = await self._session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
            await self._ask("Security.setIgnoreCertificateErrors", ignore=True)

    def _socket(self, family: int) -> socket.socket:
        made = open_socket(self._topology, self.host, family, socket.SOCK_STREAM)
        made.setblocking(False)
        return made

    async def _address(self) -> str:
        """Where it listens, by its own words."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            log = self.process.log.read_text(errors="replace") if self.process.log.exists() else ""
            if (found := re.search(r"listening on (ws://\S+)", log)) is not None:
                return found[1]
            if not self.process.alive:
                break
            await asyncio.sleep(0.05)
        raise LabError(f"{self.process.name} does not start:\n{self.process.tail()}")

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self._wire is not None
        self._number += 1
        await self._wire.send_str(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = await self._wire.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise LabError(f"{self.process.name} has closed its socket:\n{self.process.tail()}")
            answer = json.loads(message.data)
            if answer.get("id") != self._number:
                continue  # an event
            if "error" in answer:
                raise LabError(f"{self.process.name}, {method}: {answer.get('message') or answer['error']}")
            found: dict[str, Any] = answer["result"]
            return found

    # -- the tab -------------------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded: anew, also where only what is behind # is another one."""
        for one in dict.fromkeys(("about:blank", url)):
            self._navigate(one)

    def _navigate(self, url: str) -> None:
        if self.kind == FIREFOX:
            self._run(self._ask("browsingContext.navigate", context=self._context, url=url, wait="complete"))
            return
        error = self._run(self._ask("Page.navigate", url=url)).get("errorText")
        if error:
            raise LabError(f"{self.process.name}, {url}: {error}")
        self.await_that(f"document.readyState === 'complete' && (location.href === 'about:blank') === {json.dumps(url == 'about:blank')}")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page as JSON has it, awaited where it is a promise. Raises LabError for what it throws."""
        wrapped = f"(async () => JSON.stringify(await ({expression}) ?? null))()"
        if self.kind == FIREFOX:
            answer = self._run(self._ask("script.evaluate", expression=wrapped, target={"context": self._context}, awaitPromise=True, userActivation=True))
            if answer["type"] == "exception":
                raise LabError(f"{self.name}: {answer['exceptionDetails']['text']}")
            return json.loads(answer["result"]["value"])
        answer = self._run(self._ask("Runtime.evaluate", expression=wrapped, awaitPromise=True, returnByValue=True, userGesture=True))
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise LabError(f"{self.name}: {details.get('exception', {}).get('description') or details['text']}")
        return json.loads(answer["result"]["value"])

    def await_that(self, expression: str, seconds: float = 120.0) -> Any:
        """Wait until an expression is true in the page; its value. Raises LabError."""
        deadline = time.monotonic() + seconds
        while True:
            if value := self.evaluate(expression):
                return value
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: not true after {seconds:g} s: {expression}")
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Press a button, as a user does."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def picture(self, path: Path) -> None:
        """What is on the screen, as PNG."""
        import base64

        if self.kind == FIREFOX:
            data = self._run(self._ask("browsingContext.captureScreenshot", context=self._context))["data"]
        else:
            data = self._run(self._ask("Page.captureScreenshot", format="png"))["data"]
        path.write_bytes(base64.b64decode(data))

    def resize(self, width: int, height: int) -> None:
        """Of the tab's viewport, in CSS pixels."""
        if self.kind == FIREFOX:
            self._run(self._ask("browsingContext.setViewport", context=self._context, viewport={"width": width, "height": height}))
        else:
            self._run(self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600))

    def prefer(self, scheme: str) -> None:
        """What a page is told of the user's preference; `scheme`: light or dark. Chromium only."""
        self._run(self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]))

    def close(self) -> None:
        """End it."""
        if self._session is not None:
            self._loop.run_until_complete(self._session.close())
            self._session = None
        self.process.kill()
        self._loop.close()
        shutil.rmtree(self.home / "Default", ignore_errors=True)
