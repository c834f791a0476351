"""What `vitreous` says when it is asked nothing: where to begin, and every command by what it is for."""

BEGIN = {
    "vitreous explain": "a page of what the packaged model sees in a cat",
    "vitreous classify photo.jpg": "name what is in an image of yours",
    "vitreous train": "train a ViT on handwritten digits in half a minute",
}

PURPOSES = {
    "an image": {
        "classify": "name what is in images",
        "explain": "write a page that shows where the model looks, and why",
        "explore": "the same in a browser, live, for any image",
        "embed": "turn images into vectors",
    },
    "training": {
        "train": "from scratch, by a recipe",
        "finetune": "a checkpoint, on a folder of yours",
        "evaluate": "how often a model is right",
        "compare": "models side by side: same data, budget, seeds",
    },
    "checkpoints": {
        "doctor": "what is in a checkpoint, and is it fed rightly",
        "convert": "for another library, or as a graph",
        "push": "to the Hugging Face Hub, with a model card",
        "benchmark": "how fast, beside other libraries",
    },
    "lists": {
        "models": "variants by name",
        "datasets": "datasets by name",
        "recipes": "what to train, with what to expect",
        "views": "what explain can draw",
        "completion": "the tab key for bash and zsh",
    },
}


def welcome() -> str:
    """The screen.

    >>> print(welcome().splitlines()[3])
      vitreous explain              a page of what the packaged model sees in a cat
    """
    lines = ["Vision Transformers you can see through.", "", "Begin with"]
    lines += [f"  {command:<30}{said}" for command, said in BEGIN.items()]
    for purpose, commands in PURPOSES.items():
        lines += [
            "",
            f"{purpose[:1].upper()}{purpose[1:]}",
            *(f"  {command:<12}{said}" for command, said in commands.items()),
        ]
    lines += ["", "vitreous COMMAND --help shows a command's flags; --json is for programs, --debug for a traceback."]
    return "\n".join(lines)
