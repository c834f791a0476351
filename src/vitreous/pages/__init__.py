"""HTML pages that open from disk: explanation, run, comparison; the front end in `assets/`."""
