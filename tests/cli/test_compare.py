"""`vitreous compare` on the command line."""

import json

import pytest
from tiny_studies import make_zoo

from vitreous.cli.main import main


@pytest.mark.slow
def test_a_small_resnet_beside_a_fine_tuned_head_on_the_command_line(tmp_path, capsys):
    zoo = make_zoo(tmp_path / "zoo")
    words = ["compare", "resnet18_small", "vit_pico_patch2_8", "--data", str(zoo), "--epochs", "1", "--seeds", "1"]
    words += ["--batch-size", "8", "--recipe", "digits", "--device", "cpu", "--skip-compiled", "--json"]
    main([*words, "-o", str(tmp_path / "study")])
    found = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in found["tables"][0]["rows"]] == ["ResNet", "ViT"]
    assert found["tables"][0]["rows"][0]["image_size"] == [8, 8]
    assert found["command"].startswith("vitreous compare resnet18_small vit_pico_patch2_8 --data ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name two models or more, or a study"),
        (["resnet18", "--study", "scratch-vit-vs-resnet"], "name two models or more, or a study"),
        (["resnet18", "resnet34"], "--data NAME"),
        (["resnet18", "--data", "digits"], "two models or more, each once"),
        (["resnet18", "resnet18", "--data", "digits"], "each once"),
        (["resnet18", "resnet34", "--data", "digits", "--seeds", "0"], "--seeds must be at least 1"),
        (["resnet18", "resnet34", "--data", "digits", "--epochs", "1", "--minutes", "1"], "not both"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["compare", *words])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
