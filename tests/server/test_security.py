"""What another page, or a curious one, may try with a request: none of it changes, opens or plants anything."""

import pytest
from starlette.testclient import TestClient

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.server.app import create_app
from vitreous.server.jobs import JobQueue
from vitreous.server.security import SecurityMiddleware, allowed_hosts
from vitreous.weights.card import Card

HOME = "http://127.0.0.1:8137"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
HTML = b"<!doctype html><script>alert(1)</script>"


@pytest.fixture(scope="module")
def jobs():
    return JobQueue()


@pytest.fixture(scope="module")
def client(jobs):
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=24, depth=2, heads=4, classes=5)))
    model.card = Card("small", Preprocess(size=(32, 32), resize=32, mean=HALF, std=HALF), tuple("abcde"))
    app = SecurityMiddleware(create_app({"small": model}, jobs), allowed_hosts("127.0.0.1", 8137))
    with TestClient(app, base_url=HOME) as client:
        yield client


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:8137.evil.example",
        "127.0.0.1:8137@evil.example",
        "localhost.:8137",
        "0.0.0.0:8137",
        "[::1]:8138",
        "127.0.0.1:08137",
        "127.1:8137",
        "127.0.0.1:8137, evil.example",
    ],
)
def test_a_name_that_merely_resembles_ours_is_not_served(client, host):
    answer = client.get("/api/models", headers={"host": host})
    assert answer.status_code == 421
    assert "small" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8137", "LOCALHOST:8137", "[::1]:8137"])
def test_names_of_this_machine_are_served(client, host):
    assert client.get("/api/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:9",
        "http://127.0.0.1",
        "http://127.0.0.1:8137.evil.example",
        "http://evil.example/127.0.0.1:8137",
        "null",
        "",
        "file://",
        "127.0.0.1:8137",
        "http://user@127.0.0.1:8137",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_another_origin_is_refused_by_every_method(client, origin, method):
    answer = client.request(method, "/api/ablate?model=small", headers={"origin": origin}, content=b"x")
    assert answer.status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_a_form_or_link_of_another_site_is_refused_without_an_origin_too(client, site):
    assert client.get("/", headers={"sec-fetch-site": site}).status_code == 403


def test_no_answer_invites_other_origins(client):
    asked = {"origin": HOME, "access-control-request-method": "POST", "access-control-request-headers": "x"}
    for method, path in (("OPTIONS", "/api/explain"), ("GET", "/api/models"), ("GET", "/nowhere")):
        headers = client.request(method, path, headers=asked).headers
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_getting_changes_nothing(client, jobs):
    paths = [
        path for path in client.get("/openapi.json").json()["paths"] if path not in ("/api/explain", "/api/ablate")
    ]
    for path in [*paths, "/", "/api", "/api/samples/chelsea", "/api/progress?client=a"]:
        client.get(path)
    for path in ("/api/explain", "/api/ablate"):
        assert client.get(path, params={"model": "small", "client": "a"}).status_code == 405
    assert (jobs.latest, jobs.lane.waiting, jobs.active) == ({}, [], set())


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "X" * 500])
@pytest.mark.parametrize("path", ["/", "/api/explain", "/assets/page.css"])
def test_other_methods_are_refused(client, method, path):
    assert client.request(method, path).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/..%2f..%2fcli.py",
        "/assets/%2e%2e%2fapp.py",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "//etc/passwd",
        "/assets/..%5capp.py",
        "/assets/page.css%00.js",
        "/assets/%c0%ae%c0%ae/app.py",
        "/assets/page.css/..",
        "/%00",
        "/api/samples/..%2fchelsea",
        "/api/samples/%00",
        "/api/samples/" + "a" * 10000,
        "/" + "a/" * 5000,
        "/%ff%fe",
    ],
)
def test_no_path_leads_elsewhere(client, path):
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code in (404, 307)
    assert "root:" not in answer.text
    assert "import" not in answer.text
    assert not answer.headers.get("location", HOME).startswith("//")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("model=small&name=" + "a" * 201, 422),
        ("model=" + "m" * 50000, 404),
        ("", 422),
        ("model=small&model=x", 404),
        ("model=small&off=" + "1.0," * 5000, 400),
        ("model=small&client=" + "c" * 65, 422),
        ("model=%00%ff", 404),
        ("model=small&off=" + "9" * 5000 + ".0", 400),
        ("&" * 20000, 422),
        ("model=small&off=%EF%BC%91", 400),
    ],
)
def test_strange_queries_get_one_line(client, query, expected):
    answer = client.post(f"/api/ablate?{query}", content=b"x")
    if "name=" in query:
        answer = client.post(f"/api/explain?{query}", content=b"x")
    assert answer.status_code == expected
    assert len(answer.content) < 200_000
    assert "1.0,1.0" not in query or "4096 at the most" in answer.text


@pytest.mark.parametrize("body", [SVG, HTML, b"GIF89a" + HTML])
@pytest.mark.parametrize(
    "kind", ["text/html", "image/svg+xml", "application/json", "multipart/form-data", "nonsense", ""]
)
def test_a_page_that_is_uploaded_never_comes_back(client, body, kind):
    answer = client.post("/api/explain?model=small&name=%3Cscript%3E", content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"alert" not in answer.content


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("GET", "/", {"host": "evil.example"}),
        ("POST", "/", {"origin": "null"}),
        ("PUT", "/", {}),
        ("POST", "/api/explain?model=small", {}),
        ("POST", "/api/explain", {}),
        ("GET", "/api/samples/chelsea", {}),
        ("GET", "/openapi.json", {}),
        ("POST", "/api/explain", {"content-length": "99999999999"}),
    ],
)
def test_every_answer_and_refusal_carries_what_protects(client, method, path, headers):
    message = client.request(method, path, headers=headers).headers
    policy = message["content-security-policy"]
    for part in ("default-src 'none'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"):
        assert part in policy
    assert message["x-content-type-options"] == "nosniff"
    assert message["cross-origin-resource-policy"] == "same-origin"
    assert message["cache-control"] == "no-store"
    assert "server" not in message


@pytest.mark.parametrize("length", ["9" * 5_000, "-1", "1e3", "0x10", " "])
def test_a_length_that_is_none_is_refused(client, length):
    answer = client.post("/api/explain?model=small", headers={"content-length": length.encode("latin-1")}, content=b"")
    assert answer.status_code in (400, 413)


def test_a_digit_that_is_no_number_is_refused_too():
    guard = SecurityMiddleware(None, allowed_hosts("127.0.0.1", 8137))  # the test client would not send it as it is
    assert guard._check({}, {"host": "127.0.0.1:8137", "content-length": "²"})[0] == 400


def test_cookies_and_credentials_of_others_do_no_harm(client):
    for headers in ({"cookie": "a=b; ;;=\x7f; vitreous"}, {"authorization": "Basic ÿ"}, {"cookie": "x" * 20_000}):
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        assert client.get("/api/models", headers=encoded).status_code == 200
