"""Read http and https addresses: which are allowed or public, redirects checked, bytes and time bounded.

Every error is a plain line: `FileNotFoundError` (no such file), `PermissionError` (no access), `ConnectionError` (no
answer, or a broken transfer), `ValueError` (wrong bytes, or an address that is not allowed).
"""

import http.client
import io
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from email.message import Message
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

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
    """Return whether http to a host stays on this machine: the host is a loopback address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, not a number
        return host == "localhost"


def read_address(
    url: str, *, limit: int, seconds: float, expected: str, timeout: float = TIMEOUT, public: bool = False
) -> bytes:
    """Return what `url` answers, at most `limit` bytes within `seconds`; plain http is allowed, as for web images.

    `expected` says in errors what should have been there. `public`: every connection, also of a redirect, goes to a
    public address, and to none of this machine or its network.
    """
    if public and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ValueError(f"expected an address that begins with https:// or http://, got {url[:80]!r}")
    target = io.BytesIO()
    stream_address(
        url, target, expected=expected, limit=limit, seconds=seconds, timeout=timeout, plain=True, public=public
    )
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
    public: bool = False,
    begin: Callable[[int | None], Callable[[int], object]] = lambda total: lambda count: None,
) -> None:
    """Write what an http address answers to `target`; raise unless complete, within `limit` bytes and `seconds`.

    Without `plain`, an address has to pass `check_address`. `begin` gets the announced number of bytes, and returns
    what is called with the number of each chunk.
    """
    end = None if seconds is None else time.monotonic() + seconds
    try:
        if not plain:
            check_address(url)
        spelled = quote(url, safe="%/:=&?~#+!$,;'@()*[]")  # spaces and letters beyond ASCII
        request = Request(spelled, headers={"User-Agent": "vitreous"})  # noqa: S310  the scheme is checked
        # a proxy would look names up by itself
        handlers = (ProxyHandler({}), PublicHTTPHandler(), PublicHTTPSHandler()) if public else ()
        with build_opener(CheckedRedirects(plain), *handlers).open(request, timeout=timeout) as answer:
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
    """Return the length that an http answer announces, if it does."""
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _check_length(url: str, length: int | None, limit: int | None) -> None:
    """Raise if an http answer is announced to be larger than the limit."""
    if length is not None and limit is not None and length > limit:
        raise ValueError(f"{url} is larger than {limit / 2**20:,.0f} MiB: download it first")


class CheckedRedirects(HTTPRedirectHandler):
    """Follow a redirect only if it is as safe as the address that the user gave.

    A redirect from https to http is not followed, nor one from the web to this machine or to its private network.
    """

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Follow a redirect of the web, or raise if it is less safe than the address that the user gave."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if req.type == "https" and new.scheme != "https":
            raise ValueError(f"{req.full_url} redirects to {newurl}, which is not encrypted: use another address")
        if not self.plain or new.scheme not in ("http", "https"):
            check_address(newurl)
        if is_private(new.hostname or "") and not is_private(old.hostname or ""):
            raise ValueError(f"{req.full_url} redirects to {newurl}, an address of this network: use that one itself")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_private(host: str) -> bool:
    """Return whether the host of an http URL is this machine or in a private network, as far as its spelling says so.

    >>> is_private("192.168.0.7"), is_private("localhost"), is_private("example.org")
    (True, True, False)
    """
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:  # a name, not a number
        return host == "localhost" or host.endswith(".localhost")


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet, also behind the prefixes that hide an IPv4 address.

    >>> [is_public(each) for each in ("93.184.215.14", "10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "224.0.0.1")]
    [True, False, False, False, False]
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        hidden = ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")  # NAT64, 6to4, Teredo
        if any(found in ipaddress.ip_network(network) for network in hidden):
            return False
    return found.is_global and not found.is_multicast


def connect_public(host: str, port: int, timeout: float | None) -> socket.socket:
    """Connect to a public address of `host`; the name is looked up once, and what was checked is connected to."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, address in found:
        if not is_public(str(address[0])):
            raise ValueError(f"{host} is an address of this machine or its network: only public ones are fetched")
    error: OSError | None = None
    for family, kind, protocol, _, address in found:
        opened = socket.socket(family, kind, protocol)
        opened.settimeout(timeout)
        try:
            opened.connect(address)
            return opened
        except OSError as failed:
            opened.close()
            error = failed
    raise error or OSError(f"no address is known for {host}")


class PublicHTTP(http.client.HTTPConnection):
    """A connection to a public address."""

    def connect(self) -> None:
        self.sock = connect_public(self.host, self.port, self.timeout)


class PublicHTTPS(http.client.HTTPSConnection):
    """An encrypted connection to a public address."""

    def connect(self) -> None:
        context = ssl.create_default_context()
        self.sock = context.wrap_socket(connect_public(self.host, self.port, self.timeout), server_hostname=self.host)


class PublicHTTPHandler(HTTPHandler):
    """urllib's handler that connects http to public addresses alone."""

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(PublicHTTP, req)


class PublicHTTPSHandler(HTTPSHandler):
    """urllib's handler that connects https to public addresses alone."""

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(PublicHTTPS, req)
