"""Headless Chromium by chromedriver (W3C WebDriver), with an invented camera and nothing else changed."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any

_PAGE = b"<!doctype html><meta charset=utf-8><title>edge</title><body></body>"
_OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, *_: object) -> None:
        pass


class Chromium:
    """A driver and its browser; each `tab` is a page of its own from localhost, which is a secure context."""

    def __init__(self) -> None:
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._port = _free_port()
        self._driver = subprocess.Popen(["chromedriver", f"--port={self._port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._session = ""
        deadline = time.monotonic() + 120
        while not self._is_up():
            assert time.monotonic() < deadline, "chromedriver does not start"
            time.sleep(0.1)
        options = {"args": _OPTIONS, "binary": shutil.which("chromium")}
        answer = self._post("/session", {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}})
        self._session = f"/session/{answer['sessionId']}"
        self._post(f"{self._session}/timeouts", {"script": 60_000})

    def _is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/status", timeout=2) as response:
                return bool(json.load(response)["value"]["ready"])
        except OSError:
            return False

    def _post(self, path: str, body: Any, method: str = "POST") -> Any:
        data = None if method == "DELETE" else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def tab(self) -> str:
        """A new page; its handle."""
        handle: str = self._post(f"{self._session}/window/new", {"type": "window"})["handle"]
        self._post(f"{self._session}/window", {"handle": handle})
        self._post(f"{self._session}/url", {"url": f"http://localhost:{self._server.server_address[1]}/"})
        return handle

    def run(self, handle: str, script: str, *arguments: Any) -> Any:
        """The value of an async function's body in a page."""
        self._post(f"{self._session}/window", {"handle": handle})
        wrapped = (
            "const done = arguments[arguments.length - 1]; const args = [...arguments].slice(0, -1);"
            f"(async () => {{ {script} }})().then((value) => done({{value}}), (error) => done({{error: String(error.stack || error)}}));"
        )
        answer = self._post(f"{self._session}/execute/async", {"script": wrapped, "args": list(arguments)})
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._session:
                self._post(self._session, None, "DELETE")
        finally:
            self._driver.terminate()
            self._driver.wait(10)
            self._server.shutdown()
            self._server.server_close()
