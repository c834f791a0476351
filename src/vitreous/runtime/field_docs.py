"""What each field of a dataclass means, from the strings below its fields: written once, read here and by `--help`."""

import ast
import inspect
import textwrap
from itertools import pairwise


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field, by field, in the source's order; nothing where there is no source to read.

    >>> from vitreous.models.resnet import ResNetConfig
    >>> field_docs(ResNetConfig)["depth"]
    '18, 34, 50, 101 or 152 layers.'
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or shipped without its source
        return {}
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef)), [])
    found = {}
    for field, below in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found
