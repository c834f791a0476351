"""Many clients at one explorer on this machine, beside some that dawdle and some that send without end.

Answers by status, waiting times, memory before, at its peak, after each round and after a rest; exit code 1 where an
answer was none of 200, 4xx and 503, or a well-behaved client got none at all.

python benchmarks/explore_load.py --clients 50 --seconds 30 --rounds 4
python benchmarks/explore_load.py --clients 200 --seconds 120 --slow 50 --oversized 20
python benchmarks/explore_load.py --clients 60 --seconds 25 --rounds 6 --split
"""

import argparse
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict

from vitreous.data.sample_photos import samples

PAUSE = 8  # seconds; the explorer gives memory back when nobody has asked for an image for 5
LIGHT = ("/", "/assets/page.css", "/assets/explorer.js", "/api/models", "/api/samples", "/api/progress?client=nobody")

PROBED = """
import ctypes, signal, sys
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
def tell(*_):
    info = library.mallinfo2()
    print(info.uordblks + info.hblkhd, info.fordblks, flush=True)
signal.signal(signal.SIGUSR1, tell)
from vitreous.cli.main import main
main(sys.argv[1:])
"""
"""The command line in a process that tells, on a signal, how many bytes glibc has handed out and how many it keeps."""


def memory(pid: int) -> float:
    """Resident memory in MB."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024  # type: ignore[index]


class Load:
    """One server, those who ask it, and what they saw."""

    def __init__(self, port: int, split: bool = False, model: str = "packaged:cifar10") -> None:
        words = [
            *(["-c", PROBED] if split else ["-m", "vitreous"]),
            "explore",
            "--model",
            model,
            "--port",
            str(port),
            "--device",
            "cpu",
        ]
        out = subprocess.PIPE if split else None
        self.model = model
        self.port, self.server = port, subprocess.Popen([sys.executable, *words], stdout=out, text=True)
        self.found: dict[str, Counter[int | str]] = defaultdict(Counter)
        self.waited: dict[str, list[float]] = defaultdict(list)
        self.peak, self.running = 0.0, True
        file = io.BytesIO()
        samples()["chelsea"].save(file, "PNG")
        self.image = file.getvalue()

    def ask(self, method: str, path: str, body: bytes | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            connection.request(method, path, body)
            begun = time.monotonic()
            answer = connection.getresponse()
            if "stages" in path and answer.status == 200:
                return self.follow(answer, begun)
            answer.read()
            return answer.status
        finally:
            connection.close()

    def follow(self, answer: http.client.HTTPResponse, begun: float) -> int:
        """Read a page in stages: when its answers and its first map come, and whether its views are refused (503)."""
        status, number = 200, 0
        while length := answer.read(4):
            part = answer.read(int.from_bytes(length, "little"))
            if number in (0, 3):  # image and answers, predictions, attention, relevance
                kind = "answers" if number == 0 else "relevance"
                self.waited[f"stages, {kind}"].append(time.monotonic() - begun)
            header = json.loads(part[4 : 4 + int.from_bytes(part[:4], "little")])
            if "error" in header:
                status = 503 if header["error"].startswith("busy") else 409
            number += 1
        return status

    def upload(self, number: int, path: str) -> int:
        path, stages = ("explain", "&stages=true") if path == "stages" else (path, "")
        return self.ask("POST", f"/api/{path}?model={self.model}&client=c{number}{stages}", self.image)

    def begin(self) -> None:
        for _ in range(240):  # until it listens
            try:
                self.upload(0, "ablate")
                break
            except OSError:
                time.sleep(0.25)
        for _ in range(3):
            self.upload(0, "explain")

    def client(self, number: int, end: float) -> None:
        """A quarter each: pages and lists, whole pages, pages in stages as a browser asks, heads switched off."""
        kind, turn = ("light", "explain", "stages", "ablate")[number % 4], number
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                turn += 1
                light = kind == "light"
                status: int | str = self.ask("GET", LIGHT[turn % len(LIGHT)]) if light else self.upload(number, kind)
            except (OSError, http.client.HTTPException) as error:
                status = type(error).__name__
            took = time.monotonic() - begun
            self.found[kind][status] += 1
            self.waited[f"{kind} {status}"].append(took)
            time.sleep(1 if status == 503 else 0.5 if kind == "light" else 0)

    def slow(self, number: int, end: float) -> None:
        """A byte a second: half of them of a body, a quarter of a request's head, a quarter nothing at all."""
        kind = ("body", "head", "body", "nothing")[number % 4]
        line = f"POST /api/explain?model={self.model} HTTP/1.1"
        head = f"{line}\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: 200000\r\n\r\n"
        while time.monotonic() < end:
            begun = time.monotonic()
            with socket.create_connection(("127.0.0.1", self.port)) as place:
                place.settimeout(1)
                status: int | str = "still open"
                try:
                    if kind == "body":
                        place.sendall(head.encode())
                    while time.monotonic() - begun < 180:
                        if kind != "nothing":
                            place.sendall(b"x")
                        try:
                            status = status_in(place.recv(4096))
                            break
                        except TimeoutError:
                            continue
                except OSError as error:
                    status = type(error).__name__
            self.found[f"slow {kind}"][status] += 1
            self.waited["slow, until cut off"].append(time.monotonic() - begun)

    def oversized(self, number: int, end: float) -> None:
        """More than is taken: a length that says so, a length that lies, pieces without end."""
        kind = ("told", "lying", "endless")[number % 3]
        length = {"told": "Content-Length: 99999999999", "lying": "Content-Length: 100"}
        head = (
            f"POST /api/ablate?model={self.model} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"{length.get(kind, 'Transfer-Encoding: chunked')}\r\n\r\n"
        )
        piece = b"x" * 65536 if kind != "endless" else b"10000\r\n" + b"x" * 65536 + b"\r\n"
        while time.monotonic() < end:
            begun, status = time.monotonic(), "no answer"  # type: tuple[float, int | str]
            with socket.create_connection(("127.0.0.1", self.port)) as place:
                place.settimeout(10)
                try:
                    place.sendall(head.encode())
                    while time.monotonic() - begun < 60:
                        place.sendall(piece)
                        place.setblocking(False)
                        try:
                            said = place.recv(4096)
                            status = status_in(said) if status == "no answer" else status
                            if not said:
                                break
                        except BlockingIOError:
                            time.sleep(0.001)
                        place.settimeout(10)
                except OSError as error:
                    status = type(error).__name__ if status == "no answer" else status
            self.found[f"oversized {kind}"][status] += 1
            self.waited["oversized, until cut off"].append(time.monotonic() - begun)
            time.sleep(1)

    def split(self) -> str:
        """What of the server's heap is in use, and what is free and kept, where it was started to tell."""
        if self.server.stdout is None:
            return ""
        self.server.send_signal(signal.SIGUSR1)
        used, free = (int(number) / 2**20 for number in self.server.stdout.readline().split())
        return f"{used:.1f} MB in use, {free:.1f} free in heaps (of which some may have been given back)"

    def watch(self) -> None:
        while self.running:
            self.peak = max(self.peak, memory(self.server.pid))
            time.sleep(0.2)

    def round(self, clients: int, slow: int, oversized: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        who = [(self.client, clients), (self.slow, slow), (self.oversized, oversized)]
        threads = [threading.Thread(target=each, args=(i, end)) for each, count in who for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def strange(self) -> list[tuple[str, int | str]]:
        """Answers that should not be: of others than those who break off themselves, anything but a status."""
        every = [(kind, status) for kind, found in self.found.items() for status in found]
        rude = ("ConnectionResetError", "BrokenPipeError", "closed")
        return [
            (kind, status)
            for kind, status in every
            if not (
                (isinstance(status, int) and (status in (200, 503) or 400 <= status < 500))
                or (status in rude and kind.startswith(("slow", "oversized")))
            )
        ]


def status_in(said: bytes) -> int | str:
    """The status of an answer's first line; an empty one stands for the end of the connection."""
    return int(said.split()[1]) if said else "closed"


def quantiles(values: list[float]) -> str:
    ordered = sorted(values)
    p50, p95, p99 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.95, 0.99))
    return f"p50 {p50:.3f} s, p95 {p95:.3f} s, p99 {p99:.3f} s, longest {ordered[-1]:.3f} s ({len(ordered)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1, help="of the same server: does its memory go on growing?")
    parser.add_argument("--slow", type=int, default=0, help="connections that send a byte a second, or nothing")
    parser.add_argument("--oversized", type=int, default=0, help="connections that send more than is taken")
    parser.add_argument("--split", action="store_true", help="also ask glibc what of the server's heap is in use")
    parser.add_argument("--model", default="packaged:cifar10")
    parser.add_argument("--port", type=int, default=8139)
    given = parser.parse_args()
    load = Load(given.port, given.split, given.model)
    try:
        load.begin()
        sizes, rested, splits = [memory(load.server.pid)], [], [load.split()]
        watcher = threading.Thread(target=load.watch)
        watcher.start()
        for _ in range(given.rounds):
            load.round(given.clients, given.slow, given.oversized, given.seconds)
            sizes.append(memory(load.server.pid))
            splits.append(load.split())
            time.sleep(PAUSE)
            rested.append(memory(load.server.pid))
        after = {}
        for kind in ("light", "explain", "ablate"):
            begun = time.monotonic()
            status = load.ask("GET", "/") if kind == "light" else load.upload(0, kind)
            after[kind] = f"{status} in {time.monotonic() - begun:.3f} s"
        load.running = False
        watcher.join()
        sizes.append(memory(load.server.pid))
    finally:
        load.running = False
        load.server.terminate()
        load.server.wait(10)
    print(
        f"{given.clients} clients, {given.slow} slow, {given.oversized} oversized for {given.rounds} × "
        f"{given.seconds:.0f} s on {os.cpu_count()} cores"
    )
    for kind, found in sorted(load.found.items()):
        print(f"  {kind}: {dict(found)}")
    for kind, waited in sorted(load.waited.items()):
        print(f"  {kind}: {quantiles(waited)}")
    print(f"at once afterwards: {after}")
    message, idle = (", ".join(f"{size:.0f}" for size in each) for each in (sizes[1:-1], rested))
    print(
        f"memory of the server: {sizes[0]:.0f} MB before, {load.peak:.0f} at its peak, {message} after each round, "
        f"{idle} after {PAUSE} s of rest each, {sizes[-1]:.0f} three answers later"
    )
    for number, split in enumerate(splits if given.split else ()):
        print(f"  heap {f'after round {number}' if number else 'before'}: {split}")
    if strange := load.strange():
        print(f"not as it should be: {strange}")
        sys.exit(1)


if __name__ == "__main__":
    main()
