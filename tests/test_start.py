"""A cold start imports what it needs and no more."""

import subprocess
import sys

from vitreous.weights.beside import imagenet_names

SCRIPT = """
import sys
from vitreous.cli import main
sys.argv = ["vitreous", "classify", "--json"]
main()
print([name for name in ("torchvision", "torch._dynamo", "sympy", "matplotlib", "pyarrow") if name in sys.modules],
      file=sys.stderr)
"""


def test_classify_starts_without_torchvision_and_compilers():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert '"label": "cat"' in done.stdout
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_class_names_read_from_one_file_are_torchvisions():
    from torchvision.models._meta import _IMAGENET_CATEGORIES

    assert imagenet_names() == tuple(_IMAGENET_CATEGORIES)


QUICK = """
import gc, sys
from vitreous.quick import quick
def verb(number, *, flag=False):
    print(number, flag, "torch" in sys.modules, gc.isenabled(), gc.get_freeze_count() > 100_000)
quick(verb)(7, flag=True)
assert quick(verb) is verb
"""


def test_what_torch_is_made_of_is_not_searched_again_and_again():
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["7", "True", "True", "True", "True"], done.stderr
