"""Hooks read and replace named values; the ones that change run before the ones that record."""

import threading

import torch
from torch import nn

from vitreous.models.hooks import HOOKS, Hook, Turn, activate, hook, hooked_attention, hooks_active, masked, scaled

MODULE = nn.Identity()


class Double(Hook):
    def __init__(self, attention=False):
        self.attention = attention

    def on_value(self, module, name, value):
        return 2 * value

    def changes_attention(self, module):
        return self.attention

    def on_attention(self, module, q, k, mask):
        pass


class Record(Double):
    turn = Turn.RECORD

    def __init__(self):
        super().__init__()
        self.values, self.queries = {}, []

    def on_value(self, module, name, value):
        self.values[name] = value
        return value

    def on_attention(self, module, q, k, mask):
        self.queries.append(q)


def test_without_a_hook_the_value_is_returned_itself():
    x = torch.ones(2)
    assert hook(MODULE, "x", x) is x
    assert not hooks_active()


def test_recording_hooks_see_the_changed_value_whichever_was_activated_first():
    for first, second in ((Record(), Double()), (Double(), Record())):
        record = first if first.turn is Turn.RECORD else second
        with activate(first), activate(second):
            assert hook(MODULE, "x", torch.ones(1)) == 2
        assert record.values["x"] == 2


class Before(Record):
    turn = Turn.UNCHANGED


def test_what_the_network_computed_is_seen_before_a_change_whichever_was_activated_first():
    before, record = Before(), Record()
    with activate(record), activate(Double()), activate(before):
        assert hook(MODULE, "value", torch.ones(1)).item() == 2.0
    assert before.values["value"].item() == 1.0
    assert record.values["value"].item() == 2.0


def test_a_hook_removes_itself_alone_and_after_an_error():
    outer, inner = Record(), Record()
    with activate(outer):
        try:
            with activate(inner):
                raise RuntimeError
        except RuntimeError:
            pass
        assert HOOKS.get() == (outer,)
    assert HOOKS.get() == ()


def test_another_thread_has_no_hooks():
    found = []
    with activate(Record()):
        thread = threading.Thread(target=lambda: found.append(hooks_active()))
        thread.start()
        thread.join()
        assert hooks_active()
    assert found == [False]


def test_attention_is_explicit_only_where_a_hook_changes_it():
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind(0)
    assert hooked_attention(MODULE, q, k, v, None) is None
    record = Record()
    with activate(record):
        assert hooked_attention(MODULE, q, k, v, None) is None
    assert record.queries == [q]
    with activate(Double(attention=True)):  # doubled scores, and the doubled softmax of them
        expected = 2 * (2 * scaled(q) @ k.mT).softmax(dim=-1) @ v
        torch.testing.assert_close(hooked_attention(MODULE, q, k, v, None), expected)


def test_a_mask_forbids_or_is_added():
    scores = torch.zeros(1, 1, 1, 2)
    assert masked(scores, None) is scores
    assert masked(scores, torch.tensor([True, False])).tolist() == [[[[0.0, float("-inf")]]]]
    assert masked(scores, torch.tensor([0.5, -1.0])).tolist() == [[[[0.5, -1.0]]]]
