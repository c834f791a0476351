"""Comparing: several models, the same images, budget and seeds in; one table and one page out."""
