"""Arrays in, `matplotlib.figure.Figure` out: every drawing of the package.

`kinds` are the results that views compute; `draw` draws any of them by `maps` (heat over an image, patches, colours),
`matrix`, `tiles`, `curves`, `bars` (and plain tables) and `architecture`. They share `style` (type, colours, words that
fit, the white sheet, `encode` to bytes), `colour_scale` (numbers to colours, and the bar that says so) and `checks` (of
the arrays that come in). Nothing here knows torch or opens a file, and no
global state of matplotlib is left changed.
"""
