"""Read http and https addresses: which are allowed, redirects checked, bytes and time bounded, errors in one line.

Every error is a plain line: `FileNotFoundError` (no such file), `PermissionError` (no access), `ConnectionError` (no
answer, or a broken transfer), `ValueError` (wrong bytes, or an address that is not allowed).
"""

import http.client
import io
import ipaddress
import ssl
import time
from collections.abc import Callable
from email.message import Message
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 30.0  # seconds without a byte before a download is aborted


def check_address(url: str) -> None:
    """Raise `ValueError` unless `url` is https, or http to this machine.

    >>> check_address("https://example.org/vit.safetensors")
    >>> check_address("http://127.0.0.1:8000/vit.safetensors")
    >>> check_address("http://example.org/vit.pth")
    Traceback (most recent call last):
    ValueError: http://example.org/vit.pth is not encrypted: use https:// (http:// is for loopback only)
    """
    address = urlsplit(url)
    if address.scheme == "https" and address.hostname:
        return
    if address.scheme == "http" and is_loopback(address.hostname or ""):
        return
    raise ValueError(f"{url} is not encrypted: use https:// (http:// is for loopback only)")


def is_loopback(host: str) -> bool:
    """Whether an address belongs to this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, not a number
        return host == "localhost"


def read_address(url: str, *, limit: int, seconds: float, expected: str, timeout: float = TIMEOUT) -> bytes:
    """Return what `url` answers, at most `limit` bytes within `seconds`; plain http is allowed, as for web images.

    `expected` says in errors what should have been there.
    """
    target = io.BytesIO()
    stream_address(url, target, expected=expected, limit=limit, seconds=seconds, timeout=timeout, plain=True)
    return target.getvalue()


def stream_address(
    url: str,
    target: BinaryIO,
    *,
    expected: str,
    limit: int | None = None,
    seconds: float | None = None,
    timeout: float = TIMEOUT,
    plain: bool = False,
    begin: Callable[[int | None], Callable[[int], object]] = lambda total: lambda count: None,
) -> None:
    """Write the answer of `url` to `target`, and raise unless it is complete, within `limit` bytes and in `seconds`.

    Without `plain`, an address has to pass `check_address`. `begin` gets the announced number of bytes, and returns
    what is called with the number of each chunk.
    """
    end = None if seconds is None else time.monotonic() + seconds
    try:
        if not plain:
            check_address(url)
        spelled = quote(url, safe="%/:=&?~#+!$,;'@()*[]")  # spaces and letters beyond ASCII
        request = Request(spelled, headers={"User-Agent": "vitreous"})  # noqa: S310  the scheme is checked
        with build_opener(CheckedRedirects(plain)).open(request, timeout=timeout) as answer:
            total = _announced(answer.headers)
            if answer.headers.get_content_type() == "text/html":  # a login page, or a page about the file
                raise ValueError(f"{url} answered with a web page: expected {expected} itself")
            _check_length(url, total, limit)
            advance, received = begin(total), 0
            # read1 returns what has come, so that a server that drips bytes does not outlast `seconds`
            while chunk := answer.read1(CHUNK):
                received += len(chunk)
                _check_length(url, received, limit)
                if end is not None and time.monotonic() > end:
                    raise ConnectionError(f"{url} took longer than {seconds:g} s: download it first")
                target.write(chunk)
                advance(len(chunk))
    except HTTPError as error:
        if error.code in (404, 410):
            raise FileNotFoundError(f"there is no file at {url}: check the name") from error
        if error.code in (401, 403):
            raise PermissionError(f"{url} answered {error.code} {error.reason}: check the name") from error
        raise ConnectionError(f"{url} answered {error.code} {error.reason}: try again later") from error
    except (URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        if type(error) is ConnectionError:  # raised above
            raise
        reason = getattr(error, "reason", error)
        raise ConnectionError(f"{url} could not be downloaded ({reason}): check the network and try again") from error
    if total is not None and received != total:
        raise ConnectionError(f"{url} broke off: expected {total:,} bytes, got {received:,}: try again")


def _announced(headers: Message) -> int | None:
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _check_length(url: str, length: int | None, limit: int | None) -> None:
    if length is not None and limit is not None and length > limit:
        raise ValueError(f"{url} is larger than {limit / 2**20:,.0f} MiB: download it first")


class CheckedRedirects(HTTPRedirectHandler):
    """Follow a redirect only if it is as safe as the address that the user gave.

    From https to http is refused, and so is a way from the web to this machine or to its private network.
    """

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if req.type == "https" and new.scheme != "https":
            raise ValueError(f"{req.full_url} redirects to {newurl}, which is not encrypted: use another address")
        if not self.plain or new.scheme not in ("http", "https"):
            check_address(newurl)
        if is_private(new.hostname or "") and not is_private(old.hostname or ""):
            raise ValueError(f"{req.full_url} redirects to {newurl}, an address of this network: use that one itself")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_private(host: str) -> bool:
    """Whether an address is this machine's or of a private network, as far as its spelling says so.

    >>> is_private("192.168.0.7"), is_private("localhost"), is_private("example.org")
    (True, True, False)
    """
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:  # a name, not a number
        return host == "localhost" or host.endswith(".localhost")
