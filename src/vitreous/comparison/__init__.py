"""Comparing: several models, the same pictures, budget and seeds in; one table and one page out."""
