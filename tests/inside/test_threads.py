"""One model in several threads at once: captured, changed, classified and plainly run, each as if it were alone."""

import threading

import torch

from conftest import noise
from vitreous.data.preprocess import HALF, Preprocess
from vitreous.inside.capture import capture
from vitreous.inside.intervene import KnockOut, intervene
from vitreous.models.vit import ViT
from vitreous.models.vit_config import ViTConfig
from vitreous.predict.classify import classify
from vitreous.weights.card import Card

ROUNDS = 12


def build():
    model = noise(ViT(ViTConfig(image_size=32, patch_size=8, width=48, depth=3, heads=4, classes=5)))
    model.card = Card("small", Preprocess(size=(32, 32), resize=32, mean=HALF, std=HALF), tuple("abcde"))
    return model


def plain(model, x):
    return (model(x),)


def captured(model, x):
    with capture(model, ["attention", "mixed"]) as seen:
        logits = model(x)
    return logits, seen.stack("attention"), seen["blocks.1.mixed"]


def without_heads(model, x):
    with intervene(model, heads_off=[(0, 1), (2, 3)]):
        return (model(x),)


def knocked_out(model, x):
    with intervene(model, knock_out=KnockOut(queries=[0], keys=[3, 4])), capture(model) as seen:
        logits = model(x)
    return logits, seen.stack("attention")


def classified(model, x):
    image = x[0].mul(64).add(128).clamp(0, 255).byte().permute(1, 2, 0).numpy()
    from PIL import Image

    answer = classify([Image.fromarray(image)], model, device="cpu", top=5)[0]
    return (torch.tensor([[p.index, p.logit] for p in answer.predictions]),)


def gradients(model, x):
    x = x.clone().requires_grad_()
    with torch.enable_grad(), capture(model, "attention", gradients=True) as seen:
        model(x)[0, 0].backward()
    return x.grad, seen.gradient("blocks.0.attention")


WAYS = (plain, captured, without_heads, knocked_out, classified, gradients)


@torch.no_grad()
def test_threads_on_one_model_compute_what_each_computes_alone():
    model = build().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    work = [(way, torch.rand(1, 3, 32, 32, generator=generator) * 2 - 1) for way in WAYS for _ in range(2)]
    alone = [way(model, x) for way, x in work]
    assert not torch.equal(without_heads(model, work[0][1])[0], alone[0][0])  # the changes are real ones
    barrier, wrong = threading.Barrier(len(work)), []

    def run(way, x, expected):
        with torch.no_grad():
            for _ in range(ROUNDS):
                barrier.wait(timeout=60)
                found = way(model, x)
                if not all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)):
                    wrong.append(way.__name__)

    threads = [threading.Thread(target=run, args=(*each, known)) for each, known in zip(work, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not barrier.broken
    assert wrong == []


@torch.no_grad()
def test_a_plain_pass_beside_an_open_intervention_stays_plain():
    model, x = build(), torch.rand(1, 3, 32, 32)
    expected, inside, go_on, found = model(x), threading.Event(), threading.Event(), []

    def hold():
        with torch.no_grad(), intervene(model, replace={"pooled": torch.zeros_like}):
            inside.set()
            go_on.wait(timeout=60)
            found.append(model(x))

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(timeout=60)
    meanwhile = model(x)
    go_on.set()
    thread.join()
    assert torch.equal(meanwhile, expected)
    assert not torch.equal(found[0], expected)
