"""Search images by a sentence. python examples/search_by_a_sentence.py TABLE "a sentence" …

TABLE is a file of features of a model with two towers, which names its model:
vitreous embed images/ --model openai/clip-vit-base-patch32 -o features.parquet
"""

import sys

import pyarrow.parquet
import torch

import vitreous

if len(sys.argv) < 3:
    sys.exit(__doc__)
table = pyarrow.parquet.read_table(sys.argv[1])
rows = [row for row in table.to_pylist() if row["image"] is not None]
images = torch.nn.functional.normalize(torch.tensor([row["features"] for row in rows]), dim=-1)

model = vitreous.load(table.schema.metadata[b"vitreous.model"].decode())
sentences = sys.argv[2:]
texts = torch.nn.functional.normalize(vitreous.embed_text(sentences, model), dim=-1)

for sentence, cosines in zip(sentences, texts @ images.T, strict=True):
    print(sentence)
    for i in cosines.argsort(descending=True)[:5].tolist():
        print(f"  {cosines[i]:.3f}  {rows[i]['image']}")
