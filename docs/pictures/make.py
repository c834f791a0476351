"""Draw the README's picture: what `vitreous classify` prints, as an SVG.

python docs/pictures/make.py
"""

from pathlib import Path

from rich.console import Console

from vitreous.predict import classify
from vitreous.samples import samples
from vitreous.verbs.classify import one_table


def main() -> None:
    pictures = samples()
    answers = classify(list(pictures.values()), device="cpu")
    named = [type(answer)(name, answer.predictions) for name, answer in zip(pictures, answers, strict=True)]
    console = Console(record=True, width=86, highlight=False)
    console.print("$ vitreous classify", style="bold")
    console.print(one_table(named))
    console.save_svg(str(Path(__file__).with_name("classify.svg")), title="vitreous")


if __name__ == "__main__":
    main()
