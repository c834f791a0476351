"""What the tests of figures share: small inputs, the pixels of a figure, and whether its words can be read."""

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from vitreous.figures.style import DPI, encode, style


def photo(height=32, width=32):
    """An image whose pixels all differ: red grows downwards, green to the right."""
    down, across = np.mgrid[:height, :width]
    return np.stack([down * 255 // height, across * 255 // width, (down + across) % 256], axis=-1).astype(np.uint8)


def pixels(figure):
    """The figure as an array `[height width 3]`; it must be opaque."""
    image = np.asarray(Image.open(io.BytesIO(encode(figure))).convert("RGBA"))
    assert (image[..., 3] == 255).all()
    return image[..., :3].astype(int)


def colours_at(figure, axes, *places):
    """The colours drawn at places (x, y) in the axes' own coordinates."""
    image = pixels(figure)
    points = axes.transData.transform(places) * DPI / figure.dpi
    return [image[image.shape[0] - 1 - int(up), int(across)] for across, up in points]


def tiles_of(axes, rows, columns):
    """A mosaic taken apart again: `[n m rows columns 4]`, one pixel for each cell."""
    image = axes.images[0].get_array()
    places = [axis.get_ticklocs() for axis in (axes.yaxis, axes.xaxis)]
    height, width = (round(2 * ticks[0] + 1) for ticks in places)  # the first tile's middle is half its size
    zoom = height // rows
    assert (height, width) == (zoom * rows, zoom * columns)
    corners = [[round(tick - ticks[0]) for tick in ticks] for ticks in places]
    return np.array(
        [[image[top : top + height : zoom, left : left + width : zoom] for left in corners[1]] for top in corners[0]]
    )


def texts_of(figure):
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def assert_legible(figure):
    """No word leaves the card, touches another one, or lies on a panel that it does not belong to."""
    with style():
        figure.set_dpi(DPI)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()  # puts tick labels in their places
        texts = texts_of(figure)
        boxes = np.array([text.get_window_extent(renderer).extents for text in texts])
    width, height = figure.bbox.size
    assert width <= 1440.5, f"the card is {width} pixels wide"
    for text, (left, bottom, right, top) in zip(texts, boxes, strict=True):
        inside = left >= 0 and bottom >= 0 and right <= width and top <= height
        assert inside, f"{text.get_text()!r} leaves the card: {left:.0f} {bottom:.0f} {right:.0f} {top:.0f}"
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.triu(np.all(high - low > 2, axis=-1), k=1)  # by more than two pixels, each way
    pairs = [(texts[i].get_text(), texts[j].get_text()) for i, j in np.argwhere(shared)]
    assert not pairs, f"words overlap: {pairs[:5]}"
    within = {text for axes in figure.axes for text in axes.texts}  # numbers in cells, names of filters
    for text, (left, bottom, right, top) in zip(texts, boxes, strict=True):
        for axes in figure.axes if text not in within else []:
            box = axes.bbox.extents
            apart = left > box[2] - 2 or right < box[0] + 2 or bottom > box[3] - 2 or top < box[1] + 2
            assert apart, f"{text.get_text()!r} lies on a panel"
