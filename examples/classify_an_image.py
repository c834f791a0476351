"""What is in an image? python examples/classify_an_image.py [IMAGE …]

Without an image, four photographs that scikit-image brings along; the model inside the package knows ten classes.
"""

import sys

from vitreous import classify, load
from vitreous.data.samples import samples

model = load()
images = {name: name for name in sys.argv[1:]} or samples()
for name, answer in zip(images, classify(list(images.values()), model, top=3), strict=True):
    best = ", ".join(f"{guess.class_name} {guess.probability:.0%}" for guess in answer.predictions)
    print(f"{name}: {best}")
