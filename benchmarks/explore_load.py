"""Many clients at one explorer on this machine: answers by status, waiting times, memory before and after each round.

python benchmarks/explore_load.py --clients 50 --seconds 30 --rounds 4
"""

import argparse
import http.client
import io
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter

from vitreous.samples import samples


def memory(pid: int) -> float:
    """Resident memory in MB."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1, help="of the same server: does its memory go on growing?")
    parser.add_argument("--port", type=int, default=8139)
    given = parser.parse_args()
    words = ["-m", "vitreous", "explore", "--port", str(given.port), "--device", "cpu"]
    server = subprocess.Popen([sys.executable, *words])
    file = io.BytesIO()
    samples()["chelsea"].save(file, "PNG")
    body = file.getvalue()
    found: Counter[int | str] = Counter()
    waited: list[float] = []

    def ask(number: int, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", given.port, timeout=60)
        connection.request("POST", f"/api/{path}?model=packaged&client=c{number}", body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    for _ in range(240):  # until it listens
        try:
            ask(0, "ablate")
            break
        except OSError:
            time.sleep(0.25)
    for _ in range(3):
        ask(0, "explain")
    sizes = [memory(server.pid)]

    def client(number: int, end: float) -> None:
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                status: int | str = ask(number, "explain" if number % 2 else "ablate")
            except OSError as error:
                status = type(error).__name__
            found[status] += 1
            if status == 200:
                waited.append(time.monotonic() - begun)
            elif status == 503:
                time.sleep(1)

    for _ in range(given.rounds):
        end = time.monotonic() + given.seconds
        threads = [threading.Thread(target=client, args=(i, end)) for i in range(given.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sizes.append(memory(server.pid))
    for _ in range(3):
        ask(0, "explain")
    sizes.append(memory(server.pid))
    length = f"{given.rounds} × {given.seconds:.0f} s"
    print(f"{given.clients} clients for {length} on {os.cpu_count()} cores: {dict(found)}")
    if waited:
        waited.sort()
        told = f"{statistics.median(waited):.2f} s (median), {waited[int(0.99 * (len(waited) - 1))]:.2f} s (p99)"
        print(f"an answer took {told}")
    told = ", ".join(f"{size:.0f}" for size in sizes[1:-1])
    print(
        f"memory of the server: {sizes[0]:.0f} MB before, {told} after each round, {sizes[-1]:.0f} three answers later"
    )
    server.terminate()
    server.wait(10)


if __name__ == "__main__":
    main()
