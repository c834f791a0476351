"""Copy files outside `docs/` that a page links to into the site: `../results/speed.md` as a page, a source as a file.

The same links then work in the repository, on a code host and in the site, and a broken link is an error in each.
Copied pages bring the files they link to in their turn. The live page is written while the site is built, as
`vitreous explore --static` does, and its pictures open it.
"""

import posixpath
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from vitreous.api.explore import write_site
from vitreous.data.sample_photos import samples
from vitreous.pages.live import MODEL_VIEWS

LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
"""`](target#anchor)`, where the target is a path: an address has a colon."""
FRONT = "README.md"
"""The repository's front page; the site has its own, `index.md`."""
IN_NAVIGATION = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PICTURE = re.compile(r"!\[[^\]]*\]\((\S*)images/live\.webp\)")
"""A picture of the live page: in the site it opens the live page itself."""


@cache
def live_page() -> dict[str, bytes]:
    """Write the live page of the packaged model, once a process: `mkdocs serve` builds the site again and again."""
    with tempfile.TemporaryDirectory() as folder:
        photo = {"coffee": samples()["coffee"]}
        written = write_site(folder, images=photo, views=MODEL_VIEWS, precision="int8")
        return {f"live/{path.name}": path.read_bytes() for path in written}


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    waiting = [(root / "docs" / file.src_uri, f"docs/{file.src_uri}") for file in files.documentation_pages()]

    def bring(source: Path) -> None:
        target = source.relative_to(root).as_posix()
        files.append(File.generated(config, target, abs_src_path=str(source)))
        if source.suffix == ".md":
            waiting.append((source, target))

    for path in [*sorted((root / "results").glob("*.md")), *(root / name for name in IN_NAVIGATION)]:
        bring(path)  # whether or not a page links to them
    while waiting:
        path, source_uri = waiting.pop()
        for target in linked(path.read_text(encoding="utf-8"), source_uri):
            source = root / target
            if target.startswith("docs/") or target == FRONT or not source.is_file():
                continue
            if files.get_file_from_path(target):
                continue
            bring(source)
    for target, content in live_page().items():
        files.append(File.generated(config, target, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    page_path = path_from_root(page.file, config)
    size = sum(map(len, live_page().values())) / 1e6
    opens = rf"[\g<0>](\1live/index.html)\n\n**[Open this page](\1live/index.html)** ({size:.0f} MB, once)."
    markdown, found = PICTURE.subn(opens, markdown)
    if page.file.src_uri == "index.md" and not found:
        raise PluginError("expected the picture images/live.webp in index.md, got none: it opens the live page")

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page_path), match[2]))
        target = target.removeprefix("docs/")
        if target != FRONT and files.get_file_from_path(target) is None:
            return match[0]  # unchanged: mkdocs reports it
        target = "index.md" if target == FRONT else target
        return (
            match[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + (match[3] or "") + ")"
        )

    return LINK.sub(rewritten, markdown)


def linked(text: str, page_path: str) -> list[str]:
    """List the paths, from the repository's root, that the page at `page_path` links to."""
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page_path), match[2])) for match in LINK.finditer(text)]


def path_from_root(file: File, config: Any) -> str:
    """Return a page's path from the repository's root."""
    inside = file.src_dir is not None and Path(file.src_dir) == Path(config.docs_dir)
    return f"docs/{file.src_uri}" if inside else file.src_uri
