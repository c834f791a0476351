"""What is in a picture? python examples/classify_a_picture.py [PICTURE …]

Without a picture, four photographs that scikit-image brings along; the model inside the package knows ten classes.
"""

import sys

from vitreous import classify, load
from vitreous.data.samples import samples

model = load()
pictures = {name: name for name in sys.argv[1:]} or samples()
for name, answer in zip(pictures, classify(list(pictures.values()), model, top=3), strict=True):
    best = ", ".join(f"{guess.label} {guess.probability:.0%}" for guess in answer.predictions)
    print(f"{name}: {best}")
