"""`vitreous push`: push a trained model to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitreous.cli.console import messages, print_json, say_remarks
from vitreous.cli.options import Switch, Text


def push(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
    private: Switch = False,
    license: Text = None,
    token_from_env: Annotated[str, tyro.conf.arg(metavar="VARIABLE")] = "HF_TOKEN",  # noqa: S107  # a name, not a token
    json: Switch = False,
) -> None:
    """Push a trained model to the Hugging Face Hub: `vitreous push runs/digits me/digits`, then `--model me/digits`.

    Weights, config and a model card are uploaded, and nothing else: no images, no optimiser state, no local paths.

    Args:
        source: A run's folder (its final model, or its newest checkpoint), a saved model's folder, or a checkpoint.
        repository: The repository on the Hub; created if it does not exist, else it gets one more commit.
        private: Make the repository private; one that is public already is an error.
        license: The licence's identifier on the Hub, such as apache-2.0, for the card; by default none is named.
        token_from_env: The environment variable that holds a token with write access; if HF_TOKEN is not set, the
            token of `hf auth login`.
        json: Print the repository, address and commit as JSON.
    """
    from dataclasses import asdict

    from vitreous.weights.load import load
    from vitreous.weights.push import check_repository, find_token
    from vitreous.weights.push import push as upload

    console = messages()
    check_repository(repository)  # before the model is loaded
    token = find_token(token_from_env)
    model = load(source)
    say_remarks(console, model)
    pushed = upload(model, repository, token=token, private=private, licence=license)  # shows its own progress
    if json:
        print_json(asdict(pushed))
        return
    print(f"pushed {', '.join(pushed.files)} to {pushed.url}")
    console.print(f"try it: vitreous classify IMAGE --model {pushed.repository}", markup=False)
