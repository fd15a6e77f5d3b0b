"""A headless Chromium, driven by its DevTools protocol over a pair of pipes: no driver program and
no library stands between. One page at a time; all calls block."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

WAIT_SECONDS = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_KEYS = {"Enter": ("\r", 13), "Tab": ("\t", 9), "Escape": ("", 27)}
_ARROWS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def find_chromium() -> str | None:
    """Where there is a Chromium, else None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


_ON_3_AND_4 = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A page. `complaints` collects what it logged as errors: exceptions, refused scripts."""

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        program = find_chromium()
        assert program is not None, "there is no Chromium"
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Out of the way of 3 and 4, where the protocol is spoken.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _ON_3_AND_4, *map(str, theirs), program),
                *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
                *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--mute-audio"),
                *("--hide-scrollbars", "--force-color-profile=srgb", "about:blank"),
            ],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, *theirs):
            os.close(end)
        self._last_id = 0
        self._unread = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(WAIT_SECONDS)
        os.close(self._commands)
        os.close(self._answers)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def prefer(self, **features: str) -> None:
        """Media features by name, with underscores: `prefers_color_scheme="dark"`."""
        listed = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.call("Emulation.setEmulatedMedia", features=listed)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        done = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"]["exception"].get("description", done))
        return done["result"].get("value")

    def wait_for(self, condition: str, seconds: float = WAIT_SECONDS) -> Any:
        """Poll until an expression is truthy, and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(condition)):
            assert time.monotonic() < deadline, f"waited in vain for {condition}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the element."""
        x, y = self._centre(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        text, code = _KEYS.get(key, ("", _ARROWS.get(key, 0)))
        options = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **options)
        self.call("Input.dispatchKeyEvent", type="keyUp", **options)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        while (answer := self._read()).get("id") != self._last_id:
            self._note(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _centre(self, selector: str) -> tuple[float, float]:
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            thrown = details["exceptionDetails"]
            self.complaints.append(thrown.get("exception", {}).get("description", str(thrown)))
        elif event.get("method") == "Log.entryAdded" and details["entry"]["level"] == "error":
            entry = details["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], WAIT_SECONDS)
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 16)
            assert piece, "the browser has ended"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
