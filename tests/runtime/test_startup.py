"""A cold start imports what it needs and no more."""

import io
import os
import signal
import subprocess
import sys
import threading

import pytest

from vitreous.runtime import startup
from vitreous.runtime.startup import exit_on_interrupt
from vitreous.weights.class_names import imagenet_names

SCRIPT = """
import sys
from vitreous.cli.main import main
main(sys.argv[1:])
print([name for name in ("torchvision", "torch._dynamo", "sympy", "matplotlib", "pyarrow") if name in sys.modules],
      file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["classify", "--json"], ["explain"]])
def test_classify_and_explain_start_without_torchvision_and_compilers(words, tmp_path):
    words = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "espresso" in done.stdout
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.slow
def test_class_names_read_from_one_file_are_torchvisions():
    from torchvision.models._meta import _IMAGENET_CATEGORIES

    assert imagenet_names() == tuple(_IMAGENET_CATEGORIES)


QUICK = """
import gc, sys
from vitreous.runtime.startup import with_torch
def command(number, *, flag=False):
    print(number, flag, "torch" in sys.modules, gc.isenabled(), gc.get_freeze_count() > 100_000)
with_torch(command)(7, flag=True)
assert with_torch(command) is command
"""


@pytest.mark.slow
def test_torch_is_imported_with_the_garbage_collector_off():
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["7", "True", "True", "True", "True"], done.stderr


SWALLOWED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except BaseException:
    pass
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are sent otherwise on Windows")
def test_an_interrupt_while_torch_is_imported_exits_with_one_line(tmp_path):
    (tmp_path / "torch.py").write_text(SWALLOWED)
    begin = "from vitreous.runtime.startup import with_torch; with_torch(lambda: print('went on'))()"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = {"env": os.environ | {"PYTHONPATH": path}, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-c", begin], **options)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "loading PyTorch …\nvitreous: interrupted\n")
    theirs = f"import signal; signal.signal(signal.SIGINT, lambda *_: print('mine')); {begin}"
    assert subprocess.run([sys.executable, "-c", theirs], **options).stdout.split("\n") == ["mine", "went on", ""]


def test_after_torch_is_there_an_interrupt_is_an_exception_again():
    with exit_on_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    in_a_thread = threading.Thread(target=lambda: exit_on_interrupt().__enter__())
    in_a_thread.start()
    in_a_thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("terminal", "begun", "left"), [(True, "loading PyTorch …", ""), (False, "loading PyTorch …\n", "\n")]
)
def test_the_command_says_at_once_that_it_has_begun(terminal, begun, left, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    with startup.starting_line():
        assert stream.getvalue() == begun
    assert stream.getvalue().rpartition("\r" if terminal else "…")[2] == left  # a terminal's line is empty again
