"""A headless Chromium, spoken to through a pipe in its own protocol: real keys, sizes and screenshots."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page; use as a context manager."""

    def __init__(self, profile: Path):
        (theirs, self._out), (self._in, answers) = os.pipe(), os.pipe()

        def descriptors() -> None:  # it reads from 3 and writes to 4
            kept = os.dup(theirs), os.dup(answers)
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)

        self._process = subprocess.Popen(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "--disable-dev-shm-usage", "about:blank"],
            preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(answers)
        self._number, self._rest, self._session = 0, b"", None

    def __enter__(self) -> "Browser":
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.tell("Page.enable")
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                piece = os.read(self._in, 1 << 16)
                assert piece, "the browser went away"
                self._rest += piece
            one, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str, width: int) -> None:
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.tell("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        answer = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < until, f"still not: {expression}"
            time.sleep(0.1)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40, "ArrowRight": 39}
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.tell(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    def picture(self, path: Path) -> None:
        size = self.tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        shot = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
