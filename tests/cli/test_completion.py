"""The tab key, pressed in real shells where they are installed."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

from vitreous.cli.main import COMMANDS, completion, main


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    import io
    from contextlib import redirect_stdout

    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        printed = io.StringIO()
        with redirect_stdout(printed):
            completion(shell)
        (folder / shell).write_text(printed.getvalue())
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


def type_in(folder, shell, options, line, expected, seconds=20):
    """Whether a real terminal with this shell shows `expected` once the tab key is pressed after `line`."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "dumb", "PS1": "$ "}
        os.execv(shell, [shell, *options, "-i"])
    shown, end = b"", time.monotonic() + seconds
    os.write(terminal, f"source ./{os.path.basename(shell)}; echo rea''dy\n".encode())
    pressed = False
    try:
        while time.monotonic() < end and expected.encode() not in shown:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)
            if not pressed and b"ready" in shown:
                os.write(terminal, f"{line}\t".encode())
                pressed = True
    finally:
        os.close(terminal)
        os.waitpid(process, 0)
    return expected in shown.decode(errors="replace")


def test_commands_are_completed(scripts):
    assert press(scripts, "vitreous", "cl") == ["classify"]
    assert set(press(scripts, "vitreous", "")) == {*COMMANDS, "-h", "--help"}


@pytest.mark.slow
def test_flags_are_those_of_the_command(scripts):
    assert sorted(press(scripts, "vitreous", "train", "--epo")) == ["--epoch-images", "--epochs"]
    assert press(scripts, "vitreous", "push", "--pri") == ["--private"]
    assert press(scripts, "vitreous", "classify", "--pri") == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_of_the_help_is_missing_or_invented(command, scripts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"(│|\|)? {1,2}-", line)]
    shown = {word for line in lines for word in re.findall(r"(?<=[ ,])--?[a-z][a-z0-9-]*", line.split("   ")[0])}
    assert set(press(scripts, "vitreous", command, "-")) == shown


def test_choices_are_completed(scripts):
    assert press(scripts, "vitreous", "classify", "x.png", "--precision", "bf") == ["bf16"]
    assert press(scripts, "vitreous", "benchmark", "--modes", "eager", "comp") == ["compiled"]


@pytest.mark.slow
def test_file_names_are_completed_where_no_word_of_ours_fits(scripts):
    assert press(scripts, "vitreous", "classify", "pho") == []
    bash = shutil.which("bash")
    assert type_in(scripts, bash, ["--norc", "--noprofile"], "vitreous classify pho", "photo.jpg")
    assert type_in(scripts, bash, ["--norc", "--noprofile"], "vitreous classify --model pho", "photo.jpg")


def test_zsh_completes_as_bash_does(scripts):
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("zsh is not on this machine")
    for line, expected in {
        "vitreous cl": "vitreous classify",
        "vitreous classify x.png --precision bf": "bf16",
        "vitreous classify pho": "photo.jpg",
    }.items():
        assert type_in(scripts, zsh, ["-f"], line, expected), line


def test_the_command_prints_the_script(capsys, scripts):
    main(["completion", "bash"])
    assert capsys.readouterr().out.strip() == (scripts / "bash").read_text().strip()
