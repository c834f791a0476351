"""Templates to HTML: `templates/*.html` filled in by jinja2, every value escaped unless it is `Markup`."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("vitreous.pages"),
        autoescape=True,
        undefined=StrictUndefined,  # a name that the template misspells is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill in a template; the result may stand inside another one as it is."""
    return Markup(_environment().get_template(template).render(**values))  # noqa: S704  # the template escaped them
