"""A real browser for tests: Debian's Chromium, driven over a pipe by its own debugging protocol.

Messages are JSON objects that end with a null byte, written to the browser's descriptor 3 and read
from its descriptor 4, so nothing but the browser is needed.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
]


class Browser:
    """One page, what it logged and what it asked for."""

    def __init__(self, write, read):
        self._write, self._read = write, read
        self._buffer, self._count, self._session = b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _message(self, timeout):
        deadline = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("Chromium did not answer")
            self._buffer += os.read(self._read, 1 << 20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, timeout=60, **params):
        self._count += 1
        request = {"id": self._count, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            answer = self._message(timeout)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width=1200, height=900, mobile=False):
        """Load a page at this width, and wait until it is complete."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip
        self.events.clear()
        self.call("Page.navigate", url=url)
        while self.run("document.readyState") != "complete":
            time.sleep(0.05)

    def run(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def problems(self):
        """Errors and warnings on the console."""
        methods = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [e["params"] for e in self.events if e.get("method") in methods]

    def requests(self):
        """The addresses that the page asked for, without what it carries in itself."""
        sent = (e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent")
        urls = (e["request"]["url"] for e in sent)
        return [url for url in urls if not url.startswith("data:")]

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))


@contextmanager
def chromium(folder):
    """A browser with an empty profile in `folder`; the test skips where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Chromium: install the package chromium")
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()
    # The protocol wants descriptors 3 and 4: a small program puts the pipes there and becomes the browser.
    launch = (
        "import os, sys; a, b = (os.dup(int(n)) for n in sys.argv[1:3]); "
        "a, b = (os.dup2(n, n + 100) for n in (a, b)); "
        "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
    )
    pipes = (to_browser, from_browser)
    process = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            launch,
            *map(str, pipes),
            program,
            *FLAGS,
            f"--user-data-dir={folder}",
        ],
        pass_fds=pipes,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(write, read)
    finally:
        process.kill()
        process.wait()
        os.close(write)
        os.close(read)
