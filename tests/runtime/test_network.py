"""Which addresses are this machine."""

import pytest

from vitreous.runtime.network import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_addresses_of_this_very_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", "localhost.example.org", "127.1", ""])
def test_addresses_that_others_can_reach_or_that_lie_elsewhere(host):
    assert not is_loopback(host)
