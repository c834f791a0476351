"""`vitreous push`."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitreous.cli.console import messages, print_json, say_remarks
from vitreous.cli.options import Text


def push(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
    private: bool = False,
    license: Text = None,
    token_from_env: Annotated[str, tyro.conf.arg(metavar="VARIABLE")] = "HF_TOKEN",  # noqa: S107  # its place
    json: bool = False,
) -> None:
    """Put a trained model on the Hugging Face Hub: `vitreous push runs/digits me/digits`, then `--model me/digits`.

    Weights, config and a model card go out, and nothing else: no images, no optimiser, no path of this machine.

    Args:
        source: A run's folder (its final model, or its newest checkpoint), a saved model's folder, or a checkpoint.
        repository: Where it goes; made where there is none, else it gets one more commit.
        private: Make the repository private; one that is public already is refused.
        license: The licence's identifier on the Hub, such as apache-2.0, for the card; without it, none is named.
        token_from_env: The environment variable with a token that may write; where HF_TOKEN is not set, what `hf auth
            login` kept.
        json: Print where it went as JSON.
    """
    from dataclasses import asdict

    from vitreous.weights.load import load
    from vitreous.weights.push import check_repository, find_token
    from vitreous.weights.push import push as send

    console = messages()
    check_repository(repository)
    token = find_token(token_from_env)
    model = load(source)
    say_remarks(console, model)
    done = send(model, repository, token=token, private=private, licence=license)  # it draws its own bars
    if json:
        print_json(asdict(done))
        return
    print(f"pushed {', '.join(done.files)} to {done.url}")
    console.print(f"try it: vitreous classify IMAGE --model {done.repository}", markup=False)
