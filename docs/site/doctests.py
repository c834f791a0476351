"""Show a docstring's `>>>` lines as a block of code; Markdown would read each `>` as a quotation."""

from typing import Any

from griffe import Extension, Object


def fenced(text: str) -> str:
    """Put fences around each doctest, up to the empty line that ends it.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").split("\\n")
    ['Adds.', '', '```python', '>>> 1 + 1', '2', '```']
    """
    paragraphs = text.split("\n\n")
    return "\n\n".join(f"```python\n{part.rstrip()}\n```" if part.startswith(">>>") else part for part in paragraphs)


class Doctests(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
