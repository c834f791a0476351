"""Measure the live page: accuracy of its weights in its own runtime, and its speed in a browser.

    python benchmarks/live.py accuracy --data /path/to/imagenet-val-500      # top-1 and top-5 of fp16 and int8, in Node
    python benchmarks/live.py equal --data /path/to/imagenet-val-500         # ten photographs in Chromium and in Python
    python benchmarks/live.py speed [--onnx node_modules/onnxruntime-web/dist] # in Chromium, beside onnxruntime-web
    python benchmarks/live.py speed --model vit_base_patch16_224 --random    # of another model, or one of random weights
    python benchmarks/live.py memory                                         # of page and worker, for photos dropped in
    python benchmarks/live.py odd                                            # fifty odd images dropped in, in Chromium

`accuracy` takes a folder of images whose folders are named after class indices. Images are decoded by Pillow, resized,
normalised and classified by the page's own scripts. `speed` measures CPU time in Node and time by the clock in
Chromium, and alternates passes with onnxruntime-web's, so that both get the same share of a busy machine: read the
ratio. A page of a model beyond the packaged one has no removal map, which Python would compute for minutes first.
Results: results/live.md.
"""

# ruff: noqa: E501  # JavaScript

import argparse
import functools
import http.server
import io
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
PATIENCE = 1_800_000  # milliseconds, for a busy machine

NODE = """
import { openSync, readSync, readFileSync } from "node:fs";
const [{ Kernels }, { Network }, { Payload }, { view, normalise }] = await Promise.all(["kernels.js", "network.js", "payload.js", "pixels.js"].map((name) => import(`./${name}`)));
const read = (name) => { const { buffer, byteOffset, length } = readFileSync(name); return buffer.slice(byteOffset, byteOffset + length); };
const { images, precisions } = JSON.parse(readFileSync("cases.json")), file = openSync("images.raw");
const networks = [];
for (const precision of precisions) {
  const weights = new Payload(read(`${precision}.bin`));
  networks.push(new Network(await Kernels.create(weights.bytes("kernels")), weights));
}
const right = precisions.map(() => [0, 0]), answers = [];
for (const { height, width, offset, label } of images) {
  const raw = new Uint8Array(height * width * 3);
  readSync(file, raw, 0, raw.length, offset);
  const { preprocess } = networks[0], x = normalise(preprocess, view(preprocess, height, width, 3, (top, bottom) => raw.subarray(top * width * 3, bottom * width * 3)));
  answers.push(networks.map((network, i) => {
    const { logits } = network.run(network.assemble(network.embed(x))), order = [...logits.keys()].sort((a, b) => logits[b] - logits[a]);
    right[i][0] += order[0] === label;
    right[i][1] += order.slice(0, 5).includes(label);
    return order[0];
  }));
}
const same = answers.filter(([a, b]) => a === b).length;
console.log(JSON.stringify({ images: images.length, same, right: Object.fromEntries(precisions.map((name, i) => [name, right[i]])) }));
"""


def accuracy(data: Path) -> None:
    """Classify a folder of images with the page's scripts, in Node, at both precisions."""
    from PIL import Image

    from vitreous.data.images import read_image
    from vitreous.pages.live import pack_network, round_weights
    from vitreous.weights.load import load

    model = load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for precision in ("fp16", "int8"):
            rounded = round_weights(model, precision)
            (folder / f"{precision}.bin").write_bytes(pack_network(rounded, precision).to_bytes())
        images, at, right = [], 0, 0
        with (folder / "images.raw").open("wb") as file:
            for path in sorted(each for each in data.rglob("*") if each.suffix.lower() in (".jpg", ".jpeg", ".png")):
                image: Image.Image = read_image(path)
                label = int(path.parent.name)
                images.append({"height": image.height, "width": image.width, "offset": at, "label": label})
                at += file.write(np.asarray(image).tobytes())
                with torch.inference_mode():
                    right += int(model(model.card.preprocess(image)[None])[0].argmax()) == label
        (folder / "cases.json").write_text(json.dumps({"images": images, "precisions": ["fp16", "int8"]}))
        print(f"Python, fp32: top-1 {right} of {len(images)}")
        print(in_node(folder, NODE))


PASSES = """
import { readFileSync } from "node:fs";
const [{ Kernels }, { Network }, { Payload }] = await Promise.all(["kernels.js", "network.js", "payload.js"].map((name) => import(`./${name}`)));
const { buffer, byteOffset, length } = readFileSync("network.bin"), weights = new Payload(buffer.slice(byteOffset, byteOffset + length));
const network = new Network(await Kernels.create(weights.bytes("kernels")), weights), { channels, size: [height, width] } = network.config;
const x = new Float32Array(channels * height * width).map(() => Math.random() - 0.5), tokens = network.assemble(network.embed(x));
const cpu = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };
const took = (options) => { const begun = cpu(); network.run(tokens, options); return cpu() - begun; };
console.log(JSON.stringify(Array.from({ length: TIMES }, () => [took({ keep: true }), took({})])));
"""


def in_node(folder: Path, script: str) -> str:
    """Run a script beside the page's own ones in Node; return what it prints."""
    from vitreous.pages.render import ASSETS

    for path in ASSETS.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "run.mjs").write_text(script)
    return subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, text=True, check=True).stdout


def find_model(name: str | None, random: bool):
    """Load a model by name or path, or make a variant with random weights and the packaged model's classes."""
    from vitreous.models.variants import variant
    from vitreous.models.vit import ViT
    from vitreous.weights.card import Card
    from vitreous.weights.load import load

    if not random:
        return load(name)
    card = load().card
    model = ViT(variant(name, classes=len(card.class_names))).eval()
    model.card = Card(f"{name}, random weights", card.preprocess, card.class_names)
    return model


def page_file(folder: Path, model=None, precision: str = "fp16") -> Path:
    """Write a live page of a cat; of a model that is given, without the views that take many passes."""
    from vitreous.data.sample_photos import samples
    from vitreous.pages.explanation import Explanation
    from vitreous.pages.live import LIVE_VIEWS, check_live, round_weights
    from vitreous.pages.report import save_report
    from vitreous.views.inspection import Inspection
    from vitreous.weights.load import load

    views = [name for name in LIVE_VIEWS if model is None or name not in ("removal", "evidence", "ablation")]
    rounded = round_weights(check_live(load() if model is None else model), precision)
    explanation = Explanation(Inspection(rounded, samples()["chelsea"], name="chelsea"), views)
    explanation.live = True
    return save_report(folder / f"{precision}.html", [explanation.page()], rounded, live=precision)


def say_times(what: str, times: np.ndarray) -> None:
    """Print the least and the median of some milliseconds."""
    print(f"{what}: least {times.min():.0f} ms, median {np.median(times):.0f} ms", flush=True)


def speed(name: str | None, random: bool, onnx: Path | None) -> None:
    """Time passes in Node and in Chromium, beside onnxruntime-web where it is given, and what a visitor waits for."""
    from chromium import Watched, browser, until

    from vitreous.data.sample_photos import samples
    from vitreous.pages.live import pack_network, warn_large
    from vitreous.weights.load import load

    model = None if name is None else find_model(name, random)
    whole = model or load()
    times = 25 if model is None else 7
    with tempfile.TemporaryDirectory() as kept, browser() as found:
        folder = Path(kept)
        (folder / "network.bin").write_bytes(pack_network(whole, "fp16").to_bytes())
        passes = np.array(json.loads(in_node(folder, PASSES.replace("TIMES", str(times)))))
        say_times("CPU time of one pass in Node, all attention kept", passes[:, 0])
        say_times("CPU time of one pass in Node, logits alone", passes[:, 1])
        for precision in ("int8", "fp16"):
            path = page_file(folder, model, precision)
            print(
                f"{precision}: {path.stat().st_size / 1e6:.1f} MB; warning: {warn_large(whole, precision)}", flush=True
            )
        samples()["coffee"].save(folder / "coffee.jpg", quality=92)
        watched = Watched(found, viewport={"width": 1366, "height": 650})
        page = watched.page
        begun = time.monotonic()
        page.goto(path.as_uri(), timeout=PATIENCE)
        page.wait_for_selector("html[data-ready]", timeout=PATIENCE)
        until(page, "document.documentElement.dataset.network === 'wasm'", PATIENCE / 1000)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        print(f"first contentful paint: {paint:.0f} ms after the page was asked for")
        print(f"weights decoded: after {time.monotonic() - begun:.1f} s", flush=True)
        took = page.evaluate(
            f"""async () => {{ const found = [], x = new Float32Array(3 * 224 * 224).map(() => Math.random() - 0.5);
            for (let i = 0; i < {times}; i++) found.push([(await vitreousNetwork.run({{ x, keep: true }})).took, (await vitreousNetwork.run({{ x }})).took]);
            return found; }}"""
        )
        kept_all, short = (np.array(column) for column in zip(*took, strict=True))
        say_times("one pass in Chromium, all attention kept", kept_all)
        say_times("one pass in Chromium, logits alone", short)
        answers = []
        for number in range(5 if model is None else 3):
            shutil.copy(folder / "coffee.jpg", folder / f"coffee-{number}.jpg")
            page.locator(".thumb").first.click()  # the report's own image: what was asked before is ended
            page.wait_for_timeout(1000 if model is None else 10_000)
            begun = time.monotonic()
            page.set_input_files("#file", str(folder / f"coffee-{number}.jpg"))
            until(page, f"globalThis.vitreous.viewer.header.image.name === 'coffee-{number}.jpg'", PATIENCE / 1000)
            answers.append(1000 * (time.monotonic() - begun))
        say_times("a photo of 600×400 dropped, until its answer is there (asked every 50 ms)", np.array(answers))
        begun = time.monotonic()
        page.evaluate("() => { const { edits } = vitreous.viewer; edits.change(() => edits.gone.add(90)); }")
        until(page, "vitreous.viewer.news.startsWith('Without 1 patch')", PATIENCE / 1000)
        print(f"a patch clicked away at once: answered after {time.monotonic() - begun:.2f} s", flush=True)
        page.evaluate("() => { vitreous.viewer.edits.clear(); }")
        if model is None:
            removal = "vitreous.viewer.header.views.find((view) => view.name === 'removal').results.length"
            page.evaluate("delete document.documentElement.dataset.ready")
            begun = time.monotonic()
            page.set_input_files("#file", str(folder / "coffee.jpg"))
            until(page, f"vitreous.viewer.header.image.name === 'coffee.jpg' && {removal}", PATIENCE / 1000)
            print(f"its removal map, 64 passes and five fits: after {time.monotonic() - begun:.1f} s", flush=True)
            until(page, "document.documentElement.dataset.ready !== undefined", PATIENCE / 1000)
            print(f"everything, {64 + 29 + 36} passes: after {time.monotonic() - begun:.1f} s", flush=True)
        print(f"complaints: {watched.complaints}")
        watched.context.close()
        if onnx is not None:
            beside_onnx(found, folder, onnx, whole)


class Heaps:
    """The memory of a page and of its worker, by Chrome's debugging protocol, in bytes."""

    def __init__(self, watched) -> None:
        self.page, self.session = watched.page, watched.context.new_cdp_session(watched.page)
        self.worker, self.answers = "", {}
        self.session.on("Target.attachedToTarget", lambda event: setattr(self, "worker", event["sessionId"]))
        self.session.on("Target.receivedMessageFromTarget", lambda event: self.hear(json.loads(event["message"])))
        self.session.send(
            "Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": False}
        )

    def hear(self, said: dict) -> None:
        self.answers[said.get("id")] = said

    def read(self) -> dict[str, int]:
        """Measure objects and buffers of the page and of its worker; the network's own memory is in neither."""
        own, number = self.session.send("Runtime.getHeapUsage"), len(self.answers) + 1
        asked = json.dumps({"id": number, "method": "Runtime.getHeapUsage"})
        self.session.send("Target.sendMessageToTarget", {"sessionId": self.worker, "message": asked})
        while number not in self.answers:
            self.page.wait_for_timeout(5)
        found = {}
        for who, usage in (("page", own), ("worker", self.answers[number]["result"])):
            found |= {f"{who}'s objects": usage["usedSize"], f"{who}'s buffers": usage["backingStorageSize"]}
        return found


def resident(browser) -> float:
    """Read the most megabytes that the page's process had in memory, program and all (Linux)."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    pages = [Path(f"/proc/{each['id']}/status") for each in processes if each["type"] == "renderer"]
    return max(int(path.read_text().split("VmHWM:")[1].split()[0]) for path in pages) / 1000


def memory() -> None:
    """Drop photos of three sizes into the page, and print what WebAssembly and JavaScript hold at most meanwhile."""
    from chromium import Watched, browser, until
    from PIL import Image

    from vitreous.data.sample_photos import samples

    with tempfile.TemporaryDirectory() as name, browser() as found:
        folder = Path(name)
        watched = Watched(found)
        heaps, page = Heaps(watched), watched.page
        page.goto(page_file(folder).as_uri(), timeout=PATIENCE)
        page.wait_for_selector("html[data-ready]", timeout=PATIENCE)
        until(page, "document.documentElement.dataset.network === 'wasm'", PATIENCE / 1000)
        print(f"the page opened: its process had at most {resident(found):.0f} MB")
        network = "vitreousNetwork.run({ x: new Float32Array(3 * 224 * 224), keep: true }).then(({ memory }) => memory)"
        for size in ((600, 400), (4000, 3000), (8000, 5000)):
            photo = folder / f"{size[0]}x{size[1]}.jpg"
            samples()["coffee"].resize(size, Image.Resampling.BICUBIC).save(photo, quality=90)
            page.evaluate("delete document.documentElement.dataset.ready")
            page.set_input_files("#file", str(photo))
            most: dict[str, int] = {}
            while not page.evaluate("document.documentElement.dataset.ready !== undefined"):
                now = heaps.read()
                most = max(most, now, key=lambda usage: sum(usage.values()))
                page.wait_for_timeout(50)
            parts = {"WebAssembly": page.evaluate(network), **most}
            said = ", ".join(f"{what} {value / 1e6:.0f}" for what, value in parts.items())
            print(f"{photo.name}: at most {sum(parts.values()) / 1e6:.0f} MB ({said})", flush=True)
            print(f"{photo.name}: its process had at most {resident(found):.0f} MB", flush=True)


def beside_onnx(browser, folder: Path, onnx: Path, model) -> None:
    """Alternate passes of the page's kernels and of onnxruntime-web's WebAssembly, one thread each, in one page."""
    from chromium import Watched, until

    from vitreous.pages.live import bundle, pack_network, round_weights

    torch.onnx.export(
        model, (torch.zeros(1, 3, 224, 224),), str(folder / "model.onnx"), dynamo=True, external_data=False,
        input_names=["x"], output_names=["logits"],
    )  # fmt: skip
    for path in onnx.iterdir():
        if path.suffix in (".mjs", ".wasm"):
            shutil.copy(path, folder)
    (folder / "network.bin").write_bytes(pack_network(round_weights(model, "fp16"), "fp16").to_bytes())
    scripts = bundle("network.js").replace('"use strict";\n', "") + bundle("kernels.js") + bundle("payload.js")
    scripts = scripts.replace('"use strict";\n', "").replace("const modules = {};\n", "")
    (folder / "beside.html").write_text(
        f"""<!doctype html><script type="module">
        const modules = {{}}; {scripts}
        import * as ort from "./ort.wasm.min.mjs";
        ort.env.wasm.numThreads = 1; ort.env.wasm.wasmPaths = new URL("./", location).href;
        const {{ Payload }} = modules["payload.js"], {{ Kernels }} = modules["kernels.js"], {{ Network }} = modules["network.js"];
        const weights = new Payload(await (await fetch("network.bin")).arrayBuffer());
        const network = new Network(await Kernels.create(weights.bytes("kernels")), weights);
        const session = await ort.InferenceSession.create("model.onnx", {{ executionProviders: ["wasm"] }});
        const x = new Float32Array(3 * 224 * 224).map(() => Math.random() - 0.5), tensor = new ort.Tensor("float32", x, [1, 3, 224, 224]);
        const found = [];
        for (let i = 0; i < 30; i++) {{
          let begun = performance.now(); const ours = network.run(network.assemble(network.embed(x)), {{ keep: true }}).logits; const own = performance.now() - begun;
          begun = performance.now(); network.run(network.assemble(network.embed(x))); const short = performance.now() - begun;
          begun = performance.now(); const theirs = (await session.run({{ x: tensor }})).logits.data; const other = performance.now() - begun;
          found.push([own, short, other, Math.max(...ours.map((value, k) => Math.abs(value - theirs[k])))]);
        }}
        globalThis.found = found; </script>"""
    )
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        watched = Watched(browser)
        watched.page.goto(f"http://127.0.0.1:{server.server_address[1]}/beside.html")
        until(watched.page, "globalThis.found !== undefined", 300)
        found = np.array(watched.page.evaluate("found"))[3:]
        server.shutdown()
    for name, column in zip(("ours, attention kept", "ours, logits alone", "onnxruntime-web"), found.T, strict=False):
        print(f"{name}: least {column.min():.0f} ms, median {np.median(column):.0f} ms")
    ratio = found[:, 2] / found[:, 0]
    print(
        f"onnxruntime-web / ours with all attention kept: median {np.median(ratio):.2f}, logits differ by {found[:, 3].max():.1e}"
    )


def equal(data: Path) -> None:
    """Drop ten photographs, as JPEG and as PNG, and compare logits, order and attention with Python's."""
    from chromium import Watched, browser, until

    from vitreous.data.images import read_image
    from vitreous.inside.capture import capture
    from vitreous.pages.live import round_weights
    from vitreous.views.inspection import Inspection
    from vitreous.weights.load import load

    model = round_weights(load(), "fp16")
    paths = sorted(data.rglob("*.jpg")) or sorted(data.rglob("*.JPEG"))
    with tempfile.TemporaryDirectory() as name, browser() as found:
        folder = Path(name)
        watched = Watched(found, offline=True)
        page = watched.open(page_file(folder).as_uri())
        for kind in ("png", "jpg"):
            worst, attended, same = 0.0, 0.0, 0
            for number, path in enumerate(paths[:: len(paths) // 10][:10]):
                image, copy = read_image(path), folder / f"{number}.{kind}"
                image.save(copy) if kind == "png" else shutil.copy(path, copy)
                page.set_input_files("#file", str(copy))
                ready = "vitreous.viewer.header.views.some((view) => view.name === 'attention-rows' && !view.pending)"
                until(page, f"vitreous.viewer.header.image.name === {copy.name!r} && {ready}", 120)
                with torch.inference_mode(), capture(model, "attention") as seen:
                    logits = model(Inspection(model, image).x)[0]
                given = page.evaluate("vitreous.viewer.header.predictions")
                same += [each["index"] for each in given[:5]] == logits.topk(5).indices.tolist()
                off = max(abs(each["logit"] - logits[each["index"]].item()) for each in given)
                worst = max(worst, off / logits.abs().max().item())
                if kind == "png":
                    got = np.array(page.evaluate("[...vitreous.viewer.payload.array('attention-rows').data]"))
                    attended = max(attended, np.abs(got - seen.stack("attention").flatten().numpy()).max())
            print(
                f"{kind}: logits off by at most {worst:.1e} of the largest, top-5 the same in {same} of 10, attention {attended:.1e}"
            )
        print(f"requests elsewhere: {watched.outside()}, complaints: {watched.complaints}")


def odd_images() -> dict[str, bytes]:
    """Make fifty odd images by name: turned, tiny, huge, of other colours, animated, damaged, none at all."""
    from PIL import Image

    from vitreous.data.sample_photos import samples

    photo, found = samples()["coffee"], {}

    def add(name: str, image: Image.Image, kind: str, **options) -> None:
        file = io.BytesIO()
        image.save(file, kind, **options)
        found[name] = file.getvalue()

    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        add(f"turned-{turn}.jpg", photo, "JPEG", exif=exif)
    for side in ((1, 1), (1, 400), (400, 1), (2, 3), (3000, 2), (2, 3000), (17, 17), (224, 224), (225, 223)):
        add(f"{side[0]}x{side[1]}.png", photo.resize(side), "PNG")
    add("40-megapixels.jpg", photo.resize((8000, 5000)), "JPEG", quality=40)
    add("tall-24-megapixels.jpg", photo.resize((3000, 8000)), "JPEG", quality=40)
    for mode in ("L", "1", "P", "LA", "RGBA", "I;16"):
        grey = photo.convert("L")
        image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257) if mode == "I;16" else photo.convert(mode)
        add(f"mode-{mode.replace(';', '-')}.png", image, "PNG")
    for mode in ("L", "CMYK"):
        add(f"mode-{mode}.jpg", photo.convert(mode), "JPEG")
    for kind in ("GIF", "WEBP", "PNG"):
        add(f"moving.{kind.lower()}", photo, kind, save_all=True, append_images=[photo.rotate(90)], duration=100)
    add("progressive.jpg", photo, "JPEG", progressive=True)
    add("photo.bmp", photo, "BMP")
    add("photo.avif", photo, "AVIF")
    add("photo.webp", photo, "WEBP")
    add("photo.tiff", photo, "TIFF")
    add("photo.jp2", photo, "JPEG2000")
    add("photo.ico", photo.resize((64, 64)), "ICO")
    add("clear.png", Image.new("RGBA", (50, 50), (255, 0, 0, 0)), "PNG")
    whole = found["turned-1.jpg"]
    found |= {"half.jpg": whole[: len(whole) // 2], "head.jpg": whole[:300], "half.png": found["mode-P.png"][:2000]}
    found |= {"text.jpg": b"this is no image", "empty.jpg": b"", "zeros.png": bytes(1000), "web.png": b"<html><body>"}
    found |= {"archive.jpg": b"PK\x03\x04" + bytes(100), "page.pdf": b"%PDF-1.7 " + bytes(100)}
    found["drawing.svg"] = (
        b'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="60"><rect width="30" height="60"/></svg>'
    )
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + b"IHDR"
        + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
        + bytes(4)
    )
    return found | {"bomb.png": bomb}


def odd() -> None:
    """Drop fifty odd images into the page: each is answered, or refused in one line."""
    from chromium import Watched, browser, until

    with tempfile.TemporaryDirectory() as name, browser() as found:
        folder = Path(name)
        watched = Watched(found)
        page = watched.open(page_file(folder).as_uri())
        answered = 0
        images = odd_images()
        for each, data in images.items():
            (folder / each).write_bytes(data)
            page.set_input_files("#file", str(folder / each))
            wrong = "document.querySelector('#status').classList.contains('wrong') && document.querySelector('#said').textContent"
            until(page, f"vitreous.viewer.header.image.name === {each!r} || ({wrong} || '').startsWith({each!r})", 120)
            said = page.evaluate(f"{wrong} || ''")
            answered += not said
            print(f"{each:24} {said or page.evaluate('vitreous.viewer.header.predictions[0].class_name')}")
        print(
            f"{len(images)} images: {answered} answered, {len(images) - answered} refused; complaints: {watched.complaints}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["accuracy", "equal", "speed", "memory", "odd"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--model", help="a name or a path; with --random the name of a variant")
    parser.add_argument("--random", action="store_true", help="random weights instead of a checkpoint's")
    asked = parser.parse_args()
    {
        "accuracy": lambda: accuracy(asked.data),
        "equal": lambda: equal(asked.data),
        "speed": lambda: speed(asked.model, asked.random, asked.onnx),
        "memory": memory,
        "odd": odd,
    }[asked.what]()
