"""Coloured shapes with their names, and a small SigLIP that learns them: words and images for tests of zero-shot."""

import json

import numpy as np
import torch
import transformers
from PIL import Image, ImageDraw, ImageFilter
from tokenizers import Tokenizer, models, pre_tokenizers, processors

COLOURS = {"red": (220, 30, 30), "green": (30, 170, 40), "blue": (40, 60, 220)}
KINDS = ("circle", "square", "triangle")
NAMES = [f"{colour} {kind}" for colour in COLOURS for kind in KINDS]
SIDE, PATCH, SIZE = 32, 4, 12
CORNERS = [(x, y) for y in (1, 18) for x in (1, 18)]  # places that do not overlap


def draw(shapes, generator):
    """Draw shapes, by name and place, on a noisy grey ground."""
    image = Image.fromarray(generator.integers(110, 146, (SIDE, SIDE, 3), dtype=np.uint8))
    pencil = ImageDraw.Draw(image)
    for name, (x, y) in shapes:
        colour, kind = name.split()
        box = [x, y, x + SIZE - 1, y + SIZE - 1]
        if kind == "circle":
            pencil.ellipse(box, fill=COLOURS[colour])
        elif kind == "square":
            pencil.rectangle(box, fill=COLOURS[colour])
        else:
            pencil.polygon([(x, y + SIZE - 1), (x + SIZE - 1, y + SIZE - 1), (x + SIZE // 2, y)], fill=COLOURS[colour])
    return image


def hide(image, place, generator):
    """Blur a shape at a place, as removal maps hide patches: by more or less."""
    (x, y), blurred = place, image.filter(ImageFilter.GaussianBlur(generator.uniform(2, 6)))
    box = (x - 1, y - 1, x + SIZE + 1, y + SIZE + 1)
    image.paste(blurred.crop(box), box)


def some_shapes(generator, count):
    """Different shapes at different places, shifted a little."""
    names = generator.choice(NAMES, count, replace=False)
    places = generator.permutation(len(CORNERS))[:count]
    return [
        (str(name), (CORNERS[i][0] + int(dx), CORNERS[i][1] + int(dy)))
        for name, i, (dx, dy) in zip(names, places, generator.integers(-1, 2, (count, 2)), strict=True)
    ]


def word_tokenizer():
    """A tokenizer of whole words: colours and kinds."""
    words = ["<pad>", "</s>", "<unk>", *COLOURS, *KINDS]
    encoder = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    encoder.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return encoder


def train_siglip(folder, steps=700, batch=48, hidden=False):
    """Train a SigLIP of transformers on images of one to three shapes, each caption true or false; write its folder.

    With `hidden`, a shape in every other image is blurred and counts as not there: else a red blur may be a red circle.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = sizes | {"num_hidden_layers": 1, "vocab_size": 16, "max_position_embeddings": 4, "projection_size": 64}
    vision = sizes | {"image_size": SIDE, "patch_size": PATCH}
    model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))
    model.logit_scale.data.fill_(2.3)
    model.logit_bias.data.fill_(-2.0)
    encoder = word_tokenizer()
    tokens = torch.tensor([[*encoder.encode(name).ids, 0] for name in NAMES])
    generator = np.random.default_rng(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1.5e-3, steps)
    for _ in range(steps):
        drawn = [some_shapes(generator, int(generator.integers(1, 4))) for _ in range(batch)]
        images = [draw(shapes, generator) for shapes in drawn]
        for image, shapes in zip(images[::2], drawn[::2], strict=True) if hidden else ():
            hide(image, shapes.pop()[1], generator)
        x = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2).float() / 127.5 - 1
        wanted = torch.tensor([[float(name in dict(shapes)) for name in NAMES] for shapes in drawn])
        logits = model(input_ids=tokens, pixel_values=x).logits_per_image
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    model.save_pretrained(folder)
    encoder.save(str(folder / "tokenizer.json"))
    stated = {"tokenizer_class": "GemmaTokenizer", "pad_token": "<pad>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    processor = {"image_processor_type": "SiglipImageProcessor", "size": {"height": SIDE, "width": SIDE}}
    processor |= {"do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return float(loss.detach())
