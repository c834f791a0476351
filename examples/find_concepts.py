"""Find what the patches of a block tell apart. python examples/find_concepts.py [FOLDER] [BLOCK]

Some hundred images are needed to find much; without a folder, parts of the sample photographs show how it is done.
Writes concepts.html, and prints the first concepts: the classes that lose most without each.
"""

import sys

import vitreous

SMALL = {} if len(sys.argv) > 1 else {"concepts": 128, "steps": 40, "measured": 4}


def parts() -> list:
    """Cut each sample photograph into six parts."""
    found = []
    for photo in vitreous.samples().values():
        width, height = photo.width // 3, photo.height // 2
        corners = [(x * width, y * height) for x in range(3) for y in range(2)]
        found += [photo.crop((x, y, x + width, y + height)) for x, y in corners]
    return found


def tell(what: str, done: int, total: int) -> None:
    if done == total or done % 50 == 0:
        print(f"{what}: {done} of {total}", file=sys.stderr)


concepts = vitreous.find_concepts(
    sys.argv[1] if len(sys.argv) > 1 else parts(),
    block=int(sys.argv[2]) if len(sys.argv) > 2 else None,
    progress=tell,
    **SMALL,
)
print(concepts)
for concept in concepts.found[:5]:
    falls = ", ".join(f"{name} {change:+.2f}" for name, change in concepts.describe(concept))
    print(f"concept {concept.index}: {falls}; a random direction {concept.random:+.2f}")
print(f"wrote {concepts.save('concepts.html')}")
