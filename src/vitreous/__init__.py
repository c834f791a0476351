"""Vision Transformers you can see through.

The public names, imported when they are first used: `import vitreous` is instant and torch-free.
"""
