"""One headless Chromium, driven over the two pipes of its own DevTools protocol: no driver, no port, no network."""

import base64
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Every name resolves to nothing, should a page get past its policy.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
ANSWER_SECONDS = 60.0
_READ_BYTES = 1 << 16


class Mode(NamedTuple):
    """A window in CSS pixels and the colour scheme that its system asks for; or a sheet of paper."""

    width: int
    height: int
    scheme: str
    is_paper: bool = False

    def __str__(self) -> str:
        return f"{self.width} px, {'paper' if self.is_paper else self.scheme}"


class Heard(NamedTuple):
    """What a page did that no report does: addresses asked for, lines of the console, dialogs opened."""

    requests: list[str]
    console: list[str]
    dialogs: list[str]


class Page:
    """The one tab of a Chromium, and what it was heard doing."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer, self._last, self._session = b"", 0, ""
        self._heard = Heard([], [], [])
        self._is_loaded, self._address = False, ""
        target = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )

    def open(self, path: Path, mode: Mode) -> None:
        """The file in this mode; returns once it is loaded.

        Raises:
            TimeoutError: it did not load in a minute.
        """
        self.show(mode)
        self._heard, self._is_loaded = Heard([], [], []), False
        self._address = path.resolve().as_uri()
        self._call("Page.navigate", url=self._address)
        end = time.monotonic() + ANSWER_SECONDS
        while not self._is_loaded:
            self._take(end)

    def show(self, mode: Mode) -> None:
        """The open page in another window and scheme, or as it is printed."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": mode.width, "height": mode.height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": mode.scheme}
        self._call("Emulation.setEmulatedMedia", media="print" if mode.is_paper else "screen", features=[scheme])

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, awaited; the page's own policy does not apply to it.

        Raises:
            RuntimeError: the expression threw.
        """
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"].get("exception", {}).get("description", "script failed"))
        return done["result"].get("value")

    def heard(self) -> Heard:
        """What the page did since it was opened or asked about last."""
        told, self._heard = self._heard, Heard([], [], [])
        return told

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def pages(self) -> int:
        """How many pages of A4 it prints to."""
        self._call("Emulation.setEmulatedMedia", media="print")
        inches = {"paperWidth": 8.27, "paperHeight": 11.69}
        made = self._call("Page.printToPDF", preferCSSPageSize=True, **inches)
        return len(re.findall(rb"/Type\s*/Page\b(?!s)", base64.b64decode(made["data"])))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._take(end)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _take(self, end: float) -> dict[str, Any]:
        """The next message; what it tells about the page is kept."""
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer in {ANSWER_SECONDS:.0f} s")
            read = os.read(self._from, _READ_BYTES)
            if not read:
                raise RuntimeError("Chromium ended")
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._is_loaded = True
        elif event == "Network.requestWillBeSent":
            address = told["request"]["url"]
            if address != self._address and not address.startswith(("data:", "blob:")):
                self._heard.requests.append(address)
        elif event == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
            self._heard.console.append(" ".join(str(arg.get("value", arg["type"])) for arg in told["args"]))
        elif event == "Runtime.exceptionThrown":
            self._heard.console.append(told["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif event == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            self._heard.console.append(told["entry"]["text"])
        elif event == "Page.javascriptDialogOpening":
            self._heard.dialogs.append(told["message"])
            os.write(self._to, _closing(self._session))


def _closing(session: str) -> bytes:
    """The command that closes a dialog; nobody waits for its answer, so it has the number 0."""
    message = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}, "sessionId": session}
    return json.dumps(message).encode() + b"\0"


@contextmanager
def browser() -> Iterator[Page]:
    """A fresh Chromium with nothing of the user's in it; it is ended and its files are removed at the end.

    Raises:
        FileNotFoundError: there is no Chromium on this machine.
    """
    if CHROMIUM is None:
        raise FileNotFoundError("no Chromium on this machine")
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        command = ["bash", "-c", f'exec "$@" 3<&{from_us} 4>&{to_us}', "chromium", CHROMIUM, *FLAGS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        try:
            yield Page(to_browser, from_browser)
        finally:
            # Chromium ends when its pipe does.
            os.close(to_browser)
            os.close(from_browser)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            if process.poll() is None:
                process.kill()
                process.wait()
