"""Every way to look at a model in front of an image: computed once, drawn by `figures/` and by the page."""
