"""The tab key, pressed in real shells where they are at hand."""

import re
import shutil
import subprocess

import pytest

from vitreous.cli.main import COMMANDS, main


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    from vitreous.cli.completion import script

    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        (folder / shell).write_text(script(shell, COMMANDS))
    (folder / "photo.jpg").touch()
    return folder


def press(folder, *words):
    """What bash offers after these words, the last of which is not finished."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not on this machine")
    line = 'source ./bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _vitreous; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [bash, "--norc", "-c", line, "bash", *words], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_verbs_are_completed(scripts):
    assert press(scripts, "vitreous", "cl") == ["classify"]
    assert set(press(scripts, "vitreous", "")) == {*COMMANDS, "--help", "--version"}


def test_flags_are_those_of_the_verb(scripts):
    assert press(scripts, "vitreous", "train", "--epo") == ["--epoch-images", "--epochs"]
    assert press(scripts, "vitreous", "push", "--pri") == ["--private"]
    assert press(scripts, "vitreous", "classify", "--pri") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_of_the_help_is_missing_or_invented(command, scripts, capsys, monkeypatch):
    from vitreous.cli.completion import flags

    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"(│|\|)? {1,2}-", line)]
    shown = {word for line in lines for word in re.findall(r"(?<=[ ,])--?[a-z][a-z0-9-]*", line.split("   ")[0])}
    assert set(flags(COMMANDS[command])) - {"--debug"} == shown - {"-h"}


def test_choices_and_known_names_are_completed(scripts):
    assert press(scripts, "vitreous", "classify", "x.png", "--precision", "bf") == ["bf16"]
    assert press(scripts, "vitreous", "explain", "--views", "roll") == ["rollout"]
    assert press(scripts, "vitreous", "train", "cifar10-") == ["cifar10-seed"]
    assert press(scripts, "vitreous", "evaluate", "--data", "pe") == ["pets"]


def test_where_no_word_of_ours_fits_the_shell_offers_files(scripts):
    assert press(scripts, "vitreous", "classify", "pho") == []
    message = subprocess.run(
        ["bash", "--norc", "-c", "source ./bash; complete -p vitreous"], cwd=scripts, capture_output=True, text=True
    )
    assert "-o default" in message.stdout


def test_zsh_reads_its_script(scripts):
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("zsh is not on this machine")
    line = "source ./zsh; COMP_WORDS=(vitreous cl); COMP_CWORD=1; whence -w _vitreous; print -r -- $_comps[vitreous]"
    done = subprocess.run([zsh, "-f", "-c", line], cwd=scripts, capture_output=True, text=True)
    assert "_vitreous: function" in done.stdout, done.stderr
    assert "_vitreous" in done.stdout.splitlines()[-1]


def test_the_verb_prints_the_script(capsys, scripts):
    main(["completion", "bash"])
    assert capsys.readouterr().out.strip() == (scripts / "bash").read_text().strip()
