"""The welcome screen of `vitreous` without a command: where to begin, and every command by purpose."""

BEGIN = {
    "vitreous explain": "write a page of what the packaged model sees in a cat",
    "vitreous classify photo.jpg": "classify an image of yours",
    "vitreous train": "train a ViT on handwritten digits in half a minute",
}

PURPOSES = {
    "an image": {
        "classify": "name what is in images",
        "explain": "write a page that shows what the model attends to, and why",
        "explore": "the same in a browser, live, for any image",
        "embed": "turn images into vectors",
    },
    "training": {
        "train": "train from scratch, by a recipe",
        "finetune": "train a checkpoint further, on your images",
        "evaluate": "measure accuracy on labelled images",
        "compare": "compare models: same data, budget, seeds",
    },
    "checkpoints": {
        "doctor": "show what was loaded, and check the preprocessing",
        "convert": "write a checkpoint for another library, or as a graph",
        "push": "upload to the Hugging Face Hub, with a model card",
        "benchmark": "measure speed beside other libraries",
    },
    "lists": {
        "models": "variants by name",
        "datasets": "datasets by name",
        "recipes": "training recipes, with their results",
        "views": "views of explain",
        "completion": "completion by the tab key for bash and zsh",
    },
}


def welcome() -> str:
    """Return the welcome screen.

    >>> print(welcome().splitlines()[3])
      vitreous explain              write a page of what the packaged model sees in a cat
    """
    lines = ["Vision Transformers you can see through.", "", "Begin with"]
    lines += [f"  {command:<30}{about}" for command, about in BEGIN.items()]
    for purpose, commands in PURPOSES.items():
        lines += [
            "",
            f"{purpose[:1].upper()}{purpose[1:]}",
            *(f"  {command:<12}{about}" for command, about in commands.items()),
        ]
    lines += ["", "vitreous COMMAND --help shows a command's flags; --json is for programs, --debug for a traceback."]
    return "\n".join(lines)
