"""Which addresses are this very machine: what comes from there, or goes there, passes nobody on the way."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can be reached there, or can reach it.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, not a number
        return host == "localhost"
