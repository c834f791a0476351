"""A rejected command line as one line, from tyro's error events; tyro's own box where there are none."""

import pytest
import tyro

from vitreous.cli.main import main
from vitreous.cli.usage import describe


def test_without_tyros_hook_its_own_box_is_shown(monkeypatch, capsys):
    monkeypatch.delattr(tyro, "_errors")
    with pytest.raises(SystemExit) as stop:
        main(["classify", "--modle", "x"])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert "--modle" in printed.err
    assert printed.out == ""


def test_an_unknown_event_is_left_to_tyro():
    assert describe(object(), "classify", dict) is None


def test_a_flag_like_no_other_gets_no_hint(capsys):
    with pytest.raises(SystemExit):
        main(["push", "a", "b", "--zzz"])
    assert capsys.readouterr().err == "vitreous: push takes no --zzz (vitreous push --help lists all flags)\n"


def test_a_value_that_looks_like_no_choice_lists_the_choices_as_the_help_does(capsys):
    with pytest.raises(SystemExit):
        main(["classify", "--statistics", "max"])
    assert "--statistics is one of half, imagenet, clip, unit, got 'max' (vitreous" in capsys.readouterr().err
