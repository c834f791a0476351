"""schemathesis over the explorer's own description of its API: no 500, and every answer as it is described.

pip install schemathesis
python benchmarks/fuzz_explorer.py --examples 300
"""

import argparse
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,missing_required_header"
)


def inputs() -> None:
    """Half of the bodies are images, whole or damaged, and half of the lists name heads, patches and classes.

    Random bytes and letters alone would never come to a model. Some numbers are out of range, some lists malformed.
    """
    import schemathesis
    from hypothesis import strategies
    from PIL import Image

    sizes = strategies.integers(1, 80)
    formats = strategies.sampled_from(["PNG", "JPEG", "WEBP", "GIF"])

    def drawn(width: int, height: int, kind: str, cut: int) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (width, height), (width, height, 99)).save(file, kind)
        return file.getvalue()[: -cut or None]

    images = strategies.builds(drawn, sizes, sizes, formats, strategies.sampled_from([0, 0, 0, 1, 20]))
    schemathesis.openapi.media_type("application/octet-stream", strategies.one_of(images, strategies.binary()))
    numbers = strategies.integers(-1, 70)  # the model has 8 blocks, 4 heads, 64 patches and 10 classes
    heads = strategies.builds("{}.{}".format, strategies.integers(0, 8), strategies.integers(0, 4))
    lists = {
        "off": strategies.lists(heads, max_size=40).map(",".join),
        "gone": strategies.lists(numbers.map(str), max_size=80).map(",".join),
        "classes": strategies.lists(numbers.map(str), max_size=12).map(",".join),
        "client": strategies.sampled_from(["", "a", "b", "a-0", "a/ablate"]),
        "model": strategies.just("packaged:cifar10"),
    }

    def filled(query: dict[str, object] | None) -> strategies.SearchStrategy[dict[str, object] | None]:
        given = query or {}
        known = {name: lists[name] | strategies.just(given[name]) for name in lists if name in given}
        return strategies.fixed_dictionaries(known).map(lambda found: query and given | found)

    schemathesis.hook("flatmap_query")(lambda context, query: filled(query))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=300, help="for each address and phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8141)
    given = parser.parse_args()
    words = ["-m", "vitreous", "explore", "--model", "packaged:cifar10", "--port", str(given.port), "--device", "cpu"]
    server = subprocess.Popen([sys.executable, *words])
    try:
        for _ in range(240):
            try:
                socket.create_connection(("127.0.0.1", given.port)).close()
                break
            except OSError:
                time.sleep(0.25)
        words = [f"http://127.0.0.1:{given.port}/openapi.json", "--checks", CHECKS, "--mode", "all"]
        words += ["--max-examples", str(given.examples), "--seed", str(given.seed), "--no-color"]
        words += ["--request-timeout", "90"]  # a busy machine takes its time
        with tempfile.TemporaryDirectory() as folder:  # what it remembers between runs is not wanted
            command = "import fuzz_explorer, schemathesis.cli as cli; fuzz_explorer.inputs(); cli.schemathesis()"
            paths = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
            environment = {**os.environ, "PYTHONPATH": paths}
            status = subprocess.call([sys.executable, "-c", command, "run", *words], cwd=folder, env=environment)
    finally:
        server.terminate()
        server.wait(10)
    sys.exit(status)


if __name__ == "__main__":
    main()
