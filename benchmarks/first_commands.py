"""What a person might type first, from an empty folder: command → exit code, seconds, first line.

    python benchmarks/first_commands.py [--vitreous PATH] [--only WORD] [--write results/first_commands.md]

Each command runs in a shell of its own, in a folder that holds what people have: photographs as PNG, JPEG, WebP, HEIC
(where Pillow can write it), a zip, folders of classes, a labels.csv, a text file, a damaged image, and odd things: a
text named .jpg, an empty file, 16 bits, CMYK, an animation, names beyond ASCII, a folder without classes. Photographs
are scikit-image's; nothing is downloaded. A command fails here if it ends in a traceback, says nothing, gives an answer
for another image, writes a page after an error, says an error twice, or ends with another exit code than stated
(0: it works; 2: one line says what to do).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from datetime import date
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

COMMANDS: list[tuple[str, int]] = [
    # a look around
    ("vitreous", 0),
    ("vitreous --version", 0),
    ("vitreous help", 0),
    ("vitreous classify --help", 0),
    ("vitreous help explain", 0),
    ("vitreous models --search tiny", 0),
    ("vitreous datasets", 0),
    ("vitreous recipes", 0),
    ("vitreous views", 0),
    ("vitreous doctor", 0),
    # an image
    ("vitreous classify", 0),
    ("vitreous classify cat.png", 0),
    ("vitreous classify cat.jpg --top 3", 0),
    ("vitreous classify cat.webp", 0),
    ("vitreous classify cat.heic", 0),
    ("vitreous classify < cat.png", 0),
    ("cat cat.png | vitreous classify -", 0),
    ("vitreous classify cat.png cup.png", 0),
    ("vitreous classify photos", 0),
    ("vitreous classify 'photos/*/*.png'", 0),
    ("vitreous classify photos.zip", 0),
    ("vitreous classify wide.png --fit squash", 0),
    ("vitreous classify cat.png --json", 0),
    ("vitreous classify photos -o answers.csv", 0),
    ("vitreous classify photos -o answers.json", 0),
    ("vitreous classify photos -o answers.parquet", 0),
    ("vitreous classify cat.png --model packaged:cifar10", 0),
    ("vitreous classify https://localhost:9/cat.jpg", 2),
    ("vitreous classify notes.txt", 2),
    ("vitreous classify broken.jpg", 2),
    ("vitreous classify cta.png", 2),
    ("vitreous clasify cat.png", 2),
    ("vitreous classify cat.png --modle packaged", 2),
    ("vitreous classify cat.png --model vit_tiny", 2),
    ("vitreous classify cat.png --model vit_tiny_patch16_224", 2),
    ("vitreous cat.png", 2),
    # why
    ("vitreous explain", 0),
    ("vitreous explain cat.png -o cat.html", 0),
    ("vitreous explain cat.png --target tabby --views relevance", 0),
    ("vitreous explain cat.png --target cathedral", 2),
    ("vitreous explain cat.png --views relevance --figures figures", 0),
    ("vitreous explain cat.png --views rollout --trust", 0),
    ("vitreous explain cat.png --views relevance --target tench --trust", 2),
    ("vitreous explain cat.png --views atention-maps", 2),
    ("vitreous explain notes.txt", 2),
    ("vitreous explore cat.png", 2),
    ("vitreous embed photos", 0),
    # my folder
    ("vitreous evaluate --data flowers", 2),
    ("vitreous evaluate --data photos", 0),
    ("vitreous evaluate photos", 2),
    ("vitreous finetune --data shapes --epochs 1", 0),
    ("vitreous finetune shapes", 2),
    ("vitreous finetune --data labels.csv --epochs 1", 0),
    ("vitreous train --data shapes --epochs 1", 2),
    ("vitreous train --epochs 1", 0),
    ("vitreous train photos", 2),
    # others
    ("vitreous compare vit_pico_patch2_8 resnet18_small --data digits --epochs 1 --seeds 2 --skip-compiled", 0),
    ("vitreous compare", 2),
    ("vitreous convert packaged out --to huggingface", 0),
    ("vitreous benchmark --seconds 1 --against ''", 0),
    # odd files
    ("vitreous classify fake.jpg", 2),
    ("vitreous classify empty.jpg", 2),
    ("vitreous classify cat16.png", 0),
    ("vitreous classify cat-cmyk.jpg", 0),
    ("vitreous classify cat-animated.gif", 0),
    ("vitreous classify 'my cat 猫.png'", 0),
    ("vitreous classify my cat.png", 2),
    ("vitreous classify nothing", 2),
    ("vitreous classify cat.png --model photos", 2),
    ("vitreous classify cat.png --model cat.png", 2),
    ("vitreous classify cat.png --model resnet50", 2),
    ("true | vitreous classify -", 2),
    ("vitreous embed photos -o x.npz", 0),
    # odd words
    ("vitreous explian cat.png", 2),
    ("vitreous classify cat.png --top five", 2),
    ("vitreous classify cup.png | head -1", 0),
    ("vitreous classify cat.png --json | python3 -m json.tool", 0),
    ("vitreous classify photos -o answers.txt", 2),
    ("vitreous classify photos -o new/folder/answers.csv", 0),
    ("vitreous explain cat.png --views relevance -o page && ls page.html", 0),
    ("vitreous explain cat.png -o cat.png", 2),
    ("vitreous explain cat.png --target 'tabby cat'", 2),
    ("vitreous explain cat.png --block 12 --views attention-maps", 2),
    # a page with the model inside, words, samples of a dataset
    ("vitreous explain cat.png --live -o live.html", 0),
    ("vitreous explain cat.png --live int4", 2),
    ("vitreous explore --static site", 0),
    ("vitreous classify cat.png --classes 'a cat' 'a dog'", 2),
    ("vitreous finetune --data photos --head text", 2),
    ("vitreous datasets --show digits -o digits.png", 0),
    ("vitreous datasets --show nothing", 2),
    ("vitreous models tiny", 2),
    # odd data
    ("vitreous evaluate --data loose", 2),
    ("vitreous evaluate --data shapes", 2),
    ("vitreous finetune --data one", 2),
    ("vitreous finetune --data single", 2),
    ("vitreous finetune --data missing.csv", 2),
    ("vitreous train --epochs 1 --output r && vitreous train --epochs 1 --output r", 0),
    ("vitreous train --resume nowhere", 2),
    ("vitreous compare vit_pico_patch2_8 --data digits", 2),
    ("vitreous compare vit_pico_patch2_8 resnet18_small --data digits --epochs 1 --seeds 1 --skip-compiled", 0),
]
"""Commands in the order of a first afternoon, each with the exit code that it should have."""


def furnish(folder: Path) -> None:
    """Fill a folder with what people have."""
    photographs = resources.files("skimage") / "data"
    cat, cup = (Image.open(str(photographs / name)) for name in ("chelsea.png", "coffee.png"))
    cat.save(folder / "cat.png")
    cat.save(folder / "cat.jpg", exif=b"Exif\0\0")
    cat.save(folder / "cat.webp")
    try:
        from pillow_heif import register_heif_opener

        register_heif_opener()
        cat.save(folder / "cat.heic")
    except ImportError:  # a file of that kind by its first bytes: the error then names the extra
        (folder / "cat.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    cup.save(folder / "cup.png")
    cat.resize((600, 150)).save(folder / "wide.png")
    (folder / "notes.txt").write_text("not an image\n")
    (folder / "broken.jpg").write_bytes((folder / "cat.jpg").read_bytes()[:500])
    for name, image in (("Egyptian cat", cat), ("espresso", cup)):
        (folder / "photos" / name).mkdir(parents=True)
        for turn in range(4):
            image.rotate(3 * turn).save(folder / "photos" / name / f"{turn}.png")
    with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for path in sorted((folder / "photos").rglob("*.png")):
            archive.write(path, path.relative_to(folder))
    rows = ["image,label"]
    for number, colour in enumerate(("red", "green", "blue")):
        (folder / "shapes" / colour).mkdir(parents=True)
        for turn in range(10):
            image = Image.new("RGB", (64, 64), "white")
            image.paste(colour, (4 * turn, 2 * turn + number, 4 * turn + 20, 2 * turn + 20))
            image.save(folder / "shapes" / colour / f"{turn}.png")
            rows.append(f"shapes/{colour}/{turn}.png,{colour}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    furnish_odd(folder, cat, cup)


def furnish_odd(folder: Path, cat: Image.Image, cup: Image.Image) -> None:
    """Add what people have without knowing it."""
    (folder / "fake.jpg").write_text("a text\n")
    (folder / "empty.jpg").write_bytes(b"")
    Image.fromarray(np.asarray(cat.convert("L")).astype(np.uint16) * 257).save(folder / "cat16.png")
    cat.convert("CMYK").save(folder / "cat-cmyk.jpg")
    cat.save(folder / "cat-animated.gif", save_all=True, append_images=[cup.resize(cat.size)], duration=100)
    cat.save(folder / "my cat 猫.png")
    for name in ("nothing", "loose", "one/cat", "single/cat", "single/cup"):
        (folder / name).mkdir(parents=True)
    for name in ("loose/0", "loose/1", "one/cat/0", "one/cat/1", "single/cat/0"):
        cat.save(folder / f"{name}.png")
    cup.save(folder / "single/cup/0.png")
    (folder / "missing.csv").write_text(
        "image,label\ncat.png,cat\nwide.png,cat\nnowhere.png,cup\nnowhere too.png,cup\n"
    )


def run(line: str, program: str) -> tuple[int, float, str, str]:
    """Run a line in a fresh copy of the folder: exit code, seconds, first line, what is wrong with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "empty"
        folder.mkdir()
        furnish(folder)
        path = f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
        begun = time.monotonic()
        try:
            done = subprocess.run(
                line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
            )
        except subprocess.TimeoutExpired:
            return -1, 600.0, "", "no end after 600 s"
        seconds = time.monotonic() - begun
        written = [entry.name for entry in folder.rglob("*.html")]
    output = done.stdout + done.stderr
    lines = [text.strip() for text in (done.stderr + done.stdout).splitlines() if text.strip()]
    lines = [text for text in lines if not text.startswith("loading")]
    shown = next((text for text in lines if done.returncode == 0 or text.startswith("vitreous:")), "")
    wrong = []
    if "Traceback" in output:
        wrong.append("traceback")
    if not shown:
        wrong.append("silence")
    asked = not done.returncode and "classify" in line and re.search(r"cat[\w-]*\.", line) and "cifar10" not in line
    if asked and ("Egyptian cat" not in output or "chelsea" in output):  # samples in place of the image
        wrong.append("a wrong answer")
    if done.returncode and written:
        wrong.append(f"wrote {written[0]} all the same")
    if done.returncode and sum(text.startswith("vitreous:") for text in done.stderr.splitlines()) != 1:
        wrong.append("not one line of error")
    return done.returncode, seconds, shown, ", ".join(wrong)


HEAD = """# First commands

What a person might type first, each in a shell of its own, from a folder that holds photographs (PNG, JPEG, WebP, HEIC), a zip,
folders of classes, tables of labels, a text file, a damaged image and other odd things. Exit code 0: it works; 2: one line says
what to do. Of {count} commands, {bad} ended in a traceback, in silence, with an answer for another image, with an error said twice,
or with another exit code than expected.

```bash
python benchmarks/first_commands.py --write results/first_commands.md
```

{date}, 2 cores of an AMD EPYC that were busy with other work (the seconds say how busy), no network, the source tree in an
environment with the test extras. The first line is that of the answer or the error, after "loading PyTorch …".

| command | exit code | seconds | first line |
|---|--:|--:|---|
"""  # noqa: E501  # as wide as the other pages


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vitreous", default=shutil.which("vitreous") or "vitreous")
    parser.add_argument("--only", default="", help="commands that contain this")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    chosen = [(line, code) for line, code in COMMANDS if given.only in line]
    rows, bad = [], 0
    for line, expected in chosen:
        code, seconds, shown, wrong = run(line, given.vitreous)
        if code != expected:
            wrong = f"{wrong}, expected exit code {expected}".strip(", ")
        bad += bool(wrong)
        print(f"{code:3d} {seconds:6.1f} s  {line}\n      {shown[:150]}" + (f"\n      WRONG: {wrong}" if wrong else ""))
        sys.stdout.flush()
        cell, typed = (text.replace("|", "\\|").replace("`", "'") for text in (shown, line))
        note = f" (**{wrong}**)" if wrong else ""
        rows.append(
            f"| `{typed}` | {code} | {seconds:.1f} | `{cell if len(cell) <= 160 else cell[:159] + '…'}`{note} |"
        )
    print(f"{len(chosen)} commands, {bad} wrong")
    if given.write:
        given.write.write_text(HEAD.format(date=date.today(), count=len(chosen), bad=bad) + "\n".join(rows) + "\n")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
