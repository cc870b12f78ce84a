"""Headless Chromium for tests of pages, spoken to over its debugging socket; nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

SECONDS = 60  # for one answer; a browser under load is slow, one that hangs must not hang the tests


Colour = tuple[int, int, int]


class PageError(Exception):
    """The page threw, or the browser did not do what it was told."""


@dataclass(frozen=True)
class Picture:
    """A screenshot: ``rows[y][x]`` is (red, green, blue)."""

    width: int
    height: int
    rows: list[list[Colour]]

    def colours(self) -> set[Colour]:
        """Every colour in it."""
        return {pixel for row in self.rows for pixel in row}


class Page:
    """One open page."""

    def __init__(self, url: str) -> None:
        self._socket = _Socket(url)
        self._number = 0
        self.errors: list[str] = []
        self.command("Runtime.enable")
        self.command("Page.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give one order and wait for its answer; errors of the page that come in meanwhile are kept."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.receive())
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until it is there."""
        self.command("Page.navigate", url="about:blank")
        self.command("Page.navigate", url=f"file://{path}{fragment}")
        self.value(
            "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
        )
        assert self.value("location.protocol") == "file:", self.value("location.href")
        assert self.errors == []

    def value(self, expression: str) -> Any:
        """What an expression of the page comes to, as data."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and let go of a key; letters write themselves."""
        text = {"text": key} if len(key) == 1 else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key)
        assert self.errors == []

    def picture(self, left: float, top: float, width: float, height: float) -> Picture:
        """What a part of the page looks like."""
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        shot = self.command("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return _decoded(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page in a browser of its own, whose profile lies in ``folder``."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs chromium (Debian package chromium)")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
               "--disable-dev-shm-usage", "--window-size=1500,1100", "--remote-debugging-port=0",
               f"--user-data-dir={folder}", "about:blank"]
    log = folder / "browser.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors, subprocess.Popen([program, *options], stdout=errors, stderr=errors) as running:
        try:
            port = _port(folder, running)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
                pages = [item for item in json.load(answer) if item["type"] == "page"]
            yield Page(pages[0]["webSocketDebuggerUrl"])
        finally:
            running.terminate()


def _port(folder: Path, running: subprocess.Popen[bytes]) -> int:
    """The port that the browser writes into its profile once it listens."""
    wanted = folder / "DevToolsActivePort"
    for _ in range(SECONDS * 20):
        if running.poll() is not None:
            raise PageError(f"the browser ended: {(folder / 'browser.log').read_text()[-500:]}")
        if wanted.exists() and (found := re.match(r"\d+", wanted.read_text())):
            return int(found[0])
        time.sleep(0.05)
    raise PageError("the browser does not listen")


class _Socket:
    """A WebSocket (RFC 6455) for one peer that sends text: no extensions, no fragments sent."""

    def __init__(self, url: str) -> None:
        where = urlparse(url)
        assert where.hostname is not None and where.port is not None
        self._raw = socket.create_connection((where.hostname, where.port), timeout=SECONDS)
        self._buffer = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {where.path} HTTP/1.1", f"Host: {where.netloc}", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self._raw.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text: str) -> None:
        payload = text.encode()
        mask = os.urandom(4)
        size = len(payload)
        head = bytes([0x81, 0x80 | size]) if size < 126 else (
            struct.pack(">BBH", 0x81, 0xFE, size) if size < 1 << 16 else struct.pack(">BBQ", 0x81, 0xFF, size)
        )
        whole = int.from_bytes(payload) ^ int.from_bytes((mask * (size // 4 + 1))[:size])
        self._raw.sendall(head + mask + whole.to_bytes(size))

    def receive(self) -> str:
        parts = []
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack(">H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._take(8))[0]
            payload = self._take(size)
            if first & 0x0F in (0, 1):
                parts.append(payload)
                if first & 0x80:
                    return b"".join(parts).decode()
            elif first & 0x0F == 8:
                raise PageError("the browser closed the page")

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _more(self) -> None:
        more = self._raw.recv(1 << 20)
        if not more:
            raise PageError("the browser has gone")
        self._buffer += more


def _decoded(png: bytes) -> Picture:
    """A PNG of 8-bit RGB or RGBA without interlace, as Chromium makes them."""
    place, data, width, height, channels = 8, b"", 0, 0, 3
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            assert (depth, interlace) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
        place += size + 12
    raw = zlib.decompress(data)
    stride = width * channels
    before = bytearray(stride)
    rows = []
    for y in range(height):
        start = y * (stride + 1)
        line = bytearray(raw[start + 1 : start + 1 + stride])
        _unfilter(raw[start], line, before, channels)
        rows.append([(line[x], line[x + 1], line[x + 2]) for x in range(0, stride, channels)])
        before = line
    return Picture(width, height, rows)


def _unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> None:
    """Undo the filter of one line of a PNG, in place (PNG specification, section 9)."""
    for x in range(len(line)):
        left = line[x - step] if x >= step else 0
        corner = above[x - step] if x >= step else 0
        match kind:
            case 1:
                line[x] = line[x] + left & 255
            case 2:
                line[x] = line[x] + above[x] & 255
            case 3:
                line[x] = line[x] + (left + above[x]) // 2 & 255
            case 4:
                guess = left + above[x] - corner
                nearest = min((left, above[x], corner), key=lambda each: abs(guess - each))
                line[x] = line[x] + nearest & 255
