"""Arrays in, `matplotlib.figure.Figure` out: every drawing of the package.

`kinds` are the results that views compute; `draw` draws any of them by `maps` (heat over an image, patches, colours),
`matrix`, `tiles`, `curves` and `bars`. They share `style` (type, colours, the white sheet, `encode` to bytes), `scale`
(numbers to colours, and the bar that says so), `text` and `shapes`. Nothing here knows torch or opens a file, and no
global state of matplotlib is left changed.
"""
