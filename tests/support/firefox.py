"""Debian's Firefox for tests, spoken to in its own plain protocol (Marionette): no driver program, no package."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

PREFERENCES = {
    "marionette.port": 0,  # any that is free; it is written to the profile
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "browser.startup.page": 0,
    "app.update.enabled": False,
}
COMPLAINTS = """
return Services.console.getMessageArray().filter((each) => each instanceof Ci.nsIScriptError)
  .filter((each) => /^(file|data|http):/.test(each.sourceName))
  .map((each) => `${each.errorMessage} (${each.sourceName.slice(0, 60)})`);
"""


@contextmanager
def firefox(profile: Path):
    """A headless Firefox, or a skip with its reason; where VITREOUS_CI is set its absence is a failure."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        if os.environ.get("VITREOUS_CI"):
            pytest.fail("no Firefox on this machine: apt-get install firefox-esr")
        pytest.skip("no Firefox on this machine")
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items())
    (profile / "user.js").write_text("\n".join(lines))
    words = [program, "--headless", "--no-remote", "--marionette", "--remote-allow-system-access"]
    process = subprocess.Popen(
        [*words, "--profile", str(profile)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield Firefox(profile)
    finally:
        process.terminate()
        process.wait(30)


class Firefox:
    """One window: a message is its length, a colon and JSON."""

    def __init__(self, profile: Path):
        port, end = profile / "MarionetteActivePort", time.monotonic() + 60
        while not (port.is_file() and port.read_text()):
            assert time.monotonic() < end, "Firefox did not come up"
            time.sleep(0.1)
        self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=60)
        self.number = 0
        self._read()
        self.ask("WebDriver:NewSession", {})
        self.ask("WebDriver:SetWindowRect", {"width": 1300, "height": 950})

    def ask(self, command, parameters):
        self.number += 1
        text = json.dumps([0, self.number, command, parameters]).encode()
        self.socket.sendall(str(len(text)).encode() + b":" + text)
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def _read(self):
        length = b""
        while (letter := self.socket.recv(1)) != b":":
            length += letter
        text = b""
        while len(text) < int(length):
            text += self.socket.recv(int(length) - len(text))
        return json.loads(text)

    def open(self, address):
        self.ask("WebDriver:Navigate", {"url": address})
        self.until("return Boolean(document.documentElement.dataset.ready)")

    def run(self, script, *arguments):
        return self.ask("WebDriver:ExecuteScript", {"script": script, "args": list(arguments), "sandbox": None})[
            "value"
        ]

    def until(self, script, patience=20.0):
        end = time.monotonic() + patience
        while not self.run(script):
            assert time.monotonic() < end, f"never came true: {script}"
            time.sleep(0.05)

    def press(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("WebDriver:PerformActions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def move(self, x, y):
        move = {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0, "origin": "viewport"}
        self.ask("WebDriver:PerformActions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def image(self) -> bytes:
        return base64.b64decode(self.ask("WebDriver:TakeScreenshot", {"full": True})["value"])

    def complaints(self):
        """Errors and warnings that pages gave rise to."""
        self.ask("Marionette:SetContext", {"value": "chrome"})
        try:
            return self.run(COMPLAINTS)
        finally:
            self.ask("Marionette:SetContext", {"value": "content"})
