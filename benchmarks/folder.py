"""Time a folder of JPEGs end to end: `vitreous classify` beside a straightforward timm script, as whole processes.

    python benchmarks/folder.py FOLDER MODEL_FOLDER [--rounds 3] [--only timm plain …]

Also prints the limits: decoding alone and the model alone, in CPU seconds of one thread. Each variant runs once before
it is measured: `--fast` then knows the fastest backend of this machine, and the files are cached for all.
"""

import argparse
import glob
import json
import os
import time

from processes import OURS, TIMM, in_turn, measured, table

FLAGS = {
    "plain": [],
    "bf16": ["--precision", "bf16"],
    "fast": ["--fast"],
    "fast bf16": ["--fast", "--precision", "bf16"],
    "fast int8": ["--fast", "--precision", "int8"],
}


def commands(folder, model):
    ours = {name: [*OURS, folder, "--model", model, "--json", *flags] for name, flags in FLAGS.items()}
    return {"timm": [*TIMM, folder, model], **ours}


def answers(name, output):
    """Return the top class of each image."""
    if name == "timm":
        return {line.rsplit(maxsplit=2)[0]: int(line.split()[-2]) for line in output.splitlines()}
    return {os.path.join(row["image"]): row["predictions"][0]["index"] for row in json.loads(output)}


def limits(folder, model):
    """Return seconds of one thread: decoding and cropping all images, and the model on as many."""
    import torch

    from vitreous.data.finding import find_images
    from vitreous.data.images import read_image
    from vitreous.models.last_block import logits_only
    from vitreous.weights.load import load

    torch.set_num_threads(1)
    network = load(model)
    view, (paths, _) = network.card.preprocess, find_images([folder])
    begun = time.process_time()
    pixels = [view.pixels(read_image(path)) for path in paths]
    decoding = time.process_time() - begun
    x = view.normalise(torch.stack(pixels[:8]))
    with torch.inference_mode():
        logits_only(network, x)
        begun = time.process_time()
        for _ in range(8):
            logits_only(network, x)
    return decoding, (time.process_time() - begun) / 64 * len(paths)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--warm", action="store_true", help="all has been run before: begin to measure at once")
    given = parser.parse_args()
    found = {k: v for k, v in commands(given.folder, given.model).items() if given.only is None or k in given.only}
    if given.warm:
        print(table(in_turn(found, given.rounds), "timm"))
        return
    count = sum(os.path.isfile(path) for path in glob.glob(f"{given.folder}/**", recursive=True))
    decoding, computing = limits(given.folder, given.model)
    print(f"one thread: decode, resize and crop {count} images {decoding:.2f} s, the model in fp32 {computing:.2f} s\n")
    guesses = {}
    for name, command in found.items():
        seconds, _, output = measured(command)
        guesses[name] = answers(name, output)
        same = sum(guesses[name][path] == index for path, index in guesses["timm"].items())
        print(f"{name}: first time {seconds:.1f} s; the top class is timm's for {same} of {len(guesses['timm'])}")
    print(f"\n{table(in_turn(found, given.rounds), 'timm')}")


if __name__ == "__main__":
    main()
