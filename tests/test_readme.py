"""What the README and the pages say can be typed can be typed, and what they point to is there."""

import functools
import re
import shlex
from pathlib import Path

import pytest
import tyro

from vitreous.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "results", ROOT / "docs"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for folder in FOLDERS for page in sorted(folder.rglob("*.md"))]


def commands(page):
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        for part in line.split("&&"):
            if found := re.match(r"\s*(?:(?:srun )?torchrun .* -m )?(vitreous .*)", part):
                yield found[1].split("#")[0].strip()
    if page.name == "README.md":  # its table has a command in each row
        rows = "\n".join(line for line in page.read_text().splitlines() if line.startswith("|"))
        yield from re.findall(r"`(vitreous [^`]+)`", rows)


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in commands(page)}))
def test_every_command_is_understood(line):
    called = []

    def stand_in(command):
        @functools.wraps(COMMANDS[command])  # the same parameters, so the same flags
        def record(*arguments, **options):
            called.append(command)

        return record

    words = shlex.split(line)[1:]
    tyro.extras.subcommand_cli_from_dict({command: stand_in(command) for command in COMMANDS}, args=words)
    assert called == [words[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_can_be_read_in_a_few_minutes_and_its_table_leads_to_every_guide():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 170
    assert [
        guide.name for guide in (ROOT / "docs/guides").glob("*.md") if f"docs/guides/{guide.name}" not in text
    ] == []


def test_the_two_commands_that_ci_runs_are_there():
    text = (ROOT / "README.md").read_text()
    assert "\npip install . && vitreous explain\n" in text
    assert "\npip install -e '.[test]' && pytest\n" in text
