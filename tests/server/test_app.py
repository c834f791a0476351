"""The server as a client sees it: starlette's test client in front of guard and application."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from conftest import SMALL, noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.inside.intervene import intervene
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.classify import classify
from vitreous.server.app import create_app, parse_heads
from vitreous.server.jobs import JobQueue
from vitreous.server.security import SecurityMiddleware, allowed_hosts
from vitreous.weights.card import Card

HOME = "http://127.0.0.1:8137"


def client_of(model, **options):
    app = SecurityMiddleware(create_app({"small": model}, JobQueue()), allowed_hosts("127.0.0.1", 8137), **options)
    return TestClient(app, base_url=HOME)


@pytest.fixture
def client(model):
    with client_of(model) as client:
        yield client


def header(body):
    length = int.from_bytes(body[:4], "little")
    return json.loads(body[4 : 4 + length])


def test_the_page_and_its_files_are_served(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for name in ("page.css", "explorer.js", "viewer.js", "api.js"):
        assert client.get(f"/assets/{name}").status_code == 200
    assert client.get("/api").status_code == 200


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e/app.py", "app.py", "../../cli.py", "nothing.js"])
def test_no_name_leads_out_of_the_assets(client, name):
    answer = client.get(f"/assets/{name}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_an_image_is_answered_with_its_payload(client, model, image):
    answer = client.post("/api/explain", params={"model": "small", "name": "mine"}, content=image)
    assert answer.status_code == 200
    message = header(answer.content)
    assert message["image"]["name"] == "mine"
    best = classify(Image.open(io.BytesIO(image)), model, device="cpu").best
    assert message["predictions"][0]["class_name"] == best.class_name
    assert message["predictions"][0]["probability"] == pytest.approx(best.probability, abs=1e-5)


def test_heads_switched_off_change_the_answer_as_intervene_does(client, model, image):
    answer = client.post("/api/ablate", params={"model": "small", "off": "1.0,1.2"}, content=image)
    assert answer.status_code == 200
    with intervene(model, heads_off=[(1, 0), (1, 2)]):
        best = classify(Image.open(io.BytesIO(image)), model, device="cpu").best
    assert answer.json()[0]["probability"] == pytest.approx(best.probability, abs=1e-5)
    plain = client.post("/api/ablate", params={"model": "small", "off": ""}, content=image).json()
    assert plain != answer.json()


@pytest.mark.parametrize(
    ("body", "status"), [(b"", 400), (b"not an image", 400), (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, 400)]
)
def test_what_is_no_image_gets_one_line(client, body, status):
    answer = client.post("/api/explain", params={"model": "small"}, content=body)
    assert answer.status_code == status
    assert len(answer.json()["detail"].splitlines()) == 1


def test_an_unknown_model_is_named(client, image):
    answer = client.post("/api/explain", params={"model": "large"}, content=image)
    assert answer.status_code == 404
    assert "small" in answer.json()["detail"]


@pytest.mark.parametrize("off", ["1", "a.b", "1.2.3", "9.0", "0.9", "-1.x"])
def test_heads_that_do_not_exist_are_refused(client, image, off):
    assert client.post("/api/ablate", params={"model": "small", "off": off}, content=image).status_code == 400


def test_bodies_beyond_the_limit_are_refused_while_they_come_in(model):
    with client_of(model, max_bytes=1000) as client:
        assert client.post("/api/explain", params={"model": "small"}, content=b"x" * 1001).status_code == 413
        pieces = (b"x" * 100 for _ in range(20))  # without a content-length
        assert client.post("/api/explain", params={"model": "small"}, content=pieces).status_code == 413


def test_another_host_name_is_not_served(client):
    assert client.get("/", headers={"host": "evil.example:8137"}).status_code == 421
    assert client.get("/", headers={"host": "127.0.0.1:9999"}).status_code == 421
    assert client.get("/", headers={"host": "localhost:8137"}).status_code == 200


def test_another_pages_requests_are_not_answered(client, image):
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        answer = client.post("/api/explain", params={"model": "small"}, content=image, headers=headers)
        assert answer.status_code == 403
    own = client.post("/api/explain", params={"model": "small"}, content=image, headers={"origin": HOME})
    assert own.status_code == 200


def test_a_token_is_asked_for_where_there_is_one(model):
    with client_of(model, token="sesame") as client:
        assert client.get("/").status_code == 401
        assert client.get("/", params={"token": "wrong"}).status_code == 401
        assert client.get("/api/models", headers={"authorization": "Bearer sesame"}).status_code == 200
        assert client.get("/", params={"token": "sesame"}).status_code == 200
        assert client.get("/api/models").status_code == 200  # the cookie was kept


def test_every_answer_forbids_what_the_page_does_not_need(client):
    for path in ("/", "/assets/page.css", "/api/models", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_api_describes_itself_without_outside_files(client):
    message = client.get("/openapi.json").json()
    names = {"models", "samples", "samples/{name}", "explain", "ablate", "progress", "fetch"}
    assert set(message["paths"]) == {f"/api/{name}" for name in names}
    assert "http" not in client.get("/api").text.replace("http-equiv", "")
    assert client.get("/docs").status_code == 404


def test_heads_are_parsed():
    assert parse_heads("") == []
    assert parse_heads("0.1,11.3") == [(0, 1), (11, 3)]


def test_any_name_is_served_where_a_token_guards_it(model, image):
    app = SecurityMiddleware(create_app({"small": model}, JobQueue()), None, "sesame")
    with TestClient(app, base_url="http://192.168.0.7:8137") as client:
        assert client.get("/").status_code == 401
        client.get("/", params={"token": "sesame"})
        own, other = {"origin": "http://192.168.0.7:8137"}, {"origin": "http://evil.example"}
        words = {"params": {"model": "small"}, "content": image}
        assert client.post("/api/ablate", headers=own, **words).status_code == 200
        assert client.post("/api/ablate", headers=other, **words).status_code == 403


def test_progress_of_an_unknown_client_is_empty_and_an_endless_name_refused(client):
    answer = client.get("/api/progress", params={"client": "nobody"})
    assert (answer.status_code, answer.json()) == (200, {})
    assert client.get("/api/progress", params={"client": "x" * 65}).status_code == 422
    assert client.get("/api/progress", params={"client": "x"}, headers={"origin": "http://evil"}).status_code == 403


def test_a_network_in_bf16_is_looked_into_and_says_nearly_the_same(model, image):
    import copy

    import torch

    half = copy.deepcopy(model).to(torch.bfloat16)
    answers = []
    for each in (model, half):
        with client_of(each) as client:
            answer = client.post("/api/explain?model=small", content=image)
            assert answer.status_code == 200, answer.text
            ablated = client.post("/api/ablate?model=small&off=1.0", content=image)
            assert ablated.status_code == 200, ablated.text
            answers.append((header(answer.content), {p["class_name"]: p["probability"] for p in ablated.json()}))
    (plain, one), (rounded, other) = answers
    assert plain["arrays"].keys() == rounded["arrays"].keys()
    assert one != other
    assert one == pytest.approx(other, abs=0.05)


def test_explore_loads_models_in_the_precision_asked_for(monkeypatch):
    import torch

    from vitreous.cli.main import main
    from vitreous.server.serve import RunningExplorer

    served = []
    monkeypatch.setattr(RunningExplorer, "wait", lambda page: served.extend(page.models.values()))
    main(["explore", *SMALL, "--precision", "bf16", "--device", "cpu", "--port", "0"])
    main(["explore", *SMALL, "--device", "cpu", "--port", "0"])
    assert [model.cls_token.dtype for model in served] == [torch.bfloat16, torch.float32]


def parts(body):
    """The parts of a response in stages: header and block of each."""
    found = []
    while body:
        length = int.from_bytes(body[:4], "little")
        part, body = body[4 : 4 + length], body[4 + length :]
        size = int.from_bytes(part[:4], "little")
        found.append((json.loads(part[4 : 4 + size]), part[4 + size :]))
    return found


def test_parts_come_in_stages_and_hold_what_the_whole_holds(client, image):
    whole = client.post("/api/explain", params={"model": "small", "name": "mine"}, content=image).content
    staged = client.post("/api/explain", params={"model": "small", "name": "mine", "stages": True}, content=image)
    assert staged.status_code == 200
    (first, _), *rest = parts(staged.content)
    expected = header(whole)
    assert first["predictions"] == expected["predictions"]
    assert first["image"]["name"] == "mine"
    assert all(view["results"] == [] for view in first["views"])
    names = [part["views"][0]["name"] for part, _ in rest]
    assert names[:4] == ["predictions", "attention-rows", "relevance", "removal"]
    assert set(names) == {view["name"] for view in first["views"]}
    by_name = {part["views"][0]["name"]: part["views"][0] for part, _ in rest}
    assert [by_name[view["name"]] for view in expected["views"]] == expected["views"]
    block = whole[4 + int.from_bytes(whole[:4], "little") :]
    for part, data in parts(staged.content):
        for name, entry in part["arrays"].items():
            where, size = expected["arrays"][name]["offset"], np.dtype(entry["type"]).itemsize
            there = entry["offset"] - part["from"]
            length = size * (int(np.prod(entry["shape"])) if "symmetric" not in entry else 1)
            assert data[there : there + length] == block[where : where + length], name


def test_an_error_after_the_answers_is_a_part_of_its_own(client, image, monkeypatch):
    from vitreous.pages.explanation import Explanation

    def fails(explanation, name):
        raise ValueError("too large")

    monkeypatch.setattr(Explanation, "results", fails)
    monkeypatch.setattr(
        Explanation, "named", property(lambda self: {"predictions"}, lambda self, value: None), raising=False
    )
    answer = client.post("/api/explain", params={"model": "small", "stages": True}, content=image)
    found = parts(answer.content)
    assert found[0][0]["predictions"]
    assert found[-1][0]["error"] == "too large"


def test_where_no_more_pages_are_taken_the_answers_come_all_the_same(model, image):
    jobs = JobQueue(max_waiting=0)
    client = TestClient(create_app({"small": model}, jobs))
    (first, _), (last, _) = parts(
        client.post("/api/explain", params={"model": "small", "stages": True}, content=image).content
    )
    assert first["predictions"]
    assert last["error"] == "busy: 0 requests are waiting already; try again"
    assert client.post("/api/ablate", params={"model": "small"}, content=image).status_code == 200
    whole = client.post("/api/explain", params={"model": "small"}, content=image)
    assert (whole.status_code, whole.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("body", [b"", b"not an image"])
def test_what_is_no_image_is_refused_before_the_first_part(client, body):
    answer = client.post("/api/explain", params={"model": "small", "stages": True}, content=body)
    assert answer.status_code == 400
    assert len(answer.json()["detail"].splitlines()) == 1


def test_removed_patches_change_answers_and_maps_as_intervene_does(client, model, image):
    params = {"model": "small", "gone": "0,5", "off": "1.0"}
    found = header(client.post("/api/explain", params=params, content=image).content)
    with intervene(model, heads_off=[(1, 0)], patches_off=[0, 5]):
        best = classify(Image.open(io.BytesIO(image)), model, device="cpu").best
    assert found["predictions"][0]["probability"] == pytest.approx(best.probability, abs=1e-5)
    staged = parts(client.post("/api/explain", params=params | {"stages": True}, content=image).content)
    assert staged[0][0]["predictions"] == found["predictions"]
    part, data = next(each for each in staged if "attention-rows" in each[0]["arrays"])
    entry = part["arrays"]["attention-rows"]
    values = np.frombuffer(data, entry["type"], int(np.prod(entry["shape"])), entry["offset"] - part["from"])
    attention = values.reshape(entry["shape"])
    assert not attention[..., [1, 6]].any()
    assert attention[..., 2].any()


def test_blurred_patches_are_seen_in_the_image_and_nowhere_else(model):
    from vitreous.server.page_parts import blurred

    seen = Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    before, after = np.asarray(seen), np.asarray(blurred(seen, model.config, [5]))
    changed = (before != after).any(axis=2)
    assert changed[8:16, 8:16].all()
    assert changed.sum() == 64
    assert after[8:16, 8:16].std() < 0.3 * before[8:16, 8:16].std()


@pytest.mark.parametrize(("size", "patch"), [((38, 38), (6, 6)), ((15, 29), (4, 6))])
def test_a_blurred_patch_changes_its_own_token_alone_where_pixels_fill_no_patch(size, patch):
    from vitreous.server.page_parts import Question

    model = noise(ViT(ViTConfig(image_size=size, patch_size=patch, partial_patches=True, width=16, depth=1, heads=2)))
    model.card = Card("partial", Preprocess(size=size, resize=size, mean=HALF, std=HALF), tuple("ab"))
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (400, 300, 3), dtype=np.uint8)).save(file, "PNG")
    for gone in range(model.layout.patches):
        before, after = (
            Question(model, patches_off=patches, blur=True).explanation(file.getvalue(), "x").inspection
            for patches in ((), (gone,))
        )
        with torch.no_grad():
            changed = (model.patch_embed(before.x) != model.patch_embed(after.x)).any(dim=-1)[0]
        assert changed.nonzero().flatten().tolist() == [gone]
        where = (before.backdrop != after.backdrop).any(axis=-1).nonzero()
        times = before.backdrop.shape[0] // size[0]
        left, top, right, bottom = (times * edge for edge in model.layout.box(gone))
        assert times > 1
        assert [(axis.min(), axis.max() + 1) for axis in where] == [(top, bottom), (left, right)]


def test_blur_asks_with_the_blurred_image_and_all_tokens(client, model, image):
    asked = {"model": "small", "gone": "5"}
    removed, blurry, plain = (
        header(client.post("/api/explain", params=params, content=image).content)["predictions"]
        for params in (asked, asked | {"way": "blur"}, {"model": "small"})
    )
    assert blurry not in (removed, plain)


def test_classes_are_explained_in_the_order_asked_for(client, image):
    found = header(client.post("/api/explain", params={"model": "small", "classes": "3"}, content=image).content)
    assert found["start"]["class"] == 3
    assert (found["classes"][0]["index"], found["classes"][0]["class_name"]) == (3, "d")
    assert len(found["classes"]) == 5
    two = header(client.post("/api/explain", params={"model": "small", "classes": "4,1"}, content=image).content)
    assert [each["index"] for each in two["classes"]] == [4, 1]
    relevance = next(view for view in two["views"] if view["name"] == "relevance")
    assert relevance["results"][0]["names"]["class"] == ["e", "b"]


@pytest.mark.parametrize(
    "wrong", [{"gone": "16"}, {"gone": "x"}, {"gone": ",".join(map(str, range(16)))}, {"classes": "5"},
              {"classes": "-1"}, {"gone": "16", "way": "blur"}, {"off": "9.0"}],
)  # fmt: skip
def test_what_does_not_exist_cannot_be_asked_for(client, image, wrong):
    for stages in (False, True):
        answer = client.post("/api/explain", params={"model": "small", "stages": stages} | wrong, content=image)
        assert answer.status_code == 400
        assert len(answer.json()["detail"].splitlines()) == 1


def test_an_address_is_fetched_for_this_machine_alone_and_only_if_it_is_an_image(model, image, monkeypatch):
    import vitreous.server.app as module

    found = {"https://example.org/cat.png": image, "https://example.org/page": b"<html>"}
    asked = []

    def read(url, **limits):
        asked.append((url, limits["public"], limits["limit"]))
        return found[url]

    monkeypatch.setattr(module, "read_address", read)
    with client_of(model) as client:
        assert client.post("/api/fetch?url=https://example.org/cat.png").status_code == 404
        assert asked == []
    app = SecurityMiddleware(create_app({"small": model}, JobQueue(), fetches=True), allowed_hosts("127.0.0.1", 8137))
    with TestClient(app, base_url=HOME) as client:
        assert client.post("/api/fetch?url=https://example.org/cat.png").content == image
        assert asked == [("https://example.org/cat.png", True, 20 * 2**20)]
        page = client.post("/api/fetch?url=https://example.org/page")
        assert page.status_code == 400
        assert "<html>" not in page.text
        foreign = client.post("/api/fetch?url=https://example.org/cat.png", headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403
        monkeypatch.undo()
        own = client.post("/api/fetch?url=http://127.0.0.1:8137/api/samples/coffee")
        assert own.status_code == 400
        assert "only public ones are fetched" in own.json()["detail"]
