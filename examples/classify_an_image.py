"""Classify images. python examples/classify_an_image.py [IMAGE …]

Without an image: two photographs of scikit-image. The packaged model knows ImageNet's thousand classes.
"""

import sys

from skimage.data import chelsea, coffee

import vitreous

model = vitreous.load()
images = {name: name for name in sys.argv[1:]} or {"chelsea": chelsea(), "coffee": coffee()}  # arrays [h w 3]
for name, answer in zip(images, vitreous.classify(list(images.values()), model, top=3), strict=True):
    best = ", ".join(f"{guess.class_name} {guess.probability:.0%}" for guess in answer.predictions)
    print(f"{name}: {best}")
