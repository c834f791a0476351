"""Arrays in, `matplotlib.figure.Figure` out: every drawing of the package.

`maps` (heat over an image, patches, colours) · `matrix` (attention matrices, blocks × heads) · `position` ·
`filters` · `curves` · `bars` · `table` · `speeds` (of a benchmark). They share `style` (type, colours, the
white card, `encode` to bytes), `scale` (numbers to colours, and the bar that says so), `cells` and `tiles` (one matrix,
many), `ticks`, `text` and `shapes`.
Nothing here knows torch or opens a file, and no global state of matplotlib is left changed.
"""
