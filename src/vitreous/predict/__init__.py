"""Inference: classify, embed, evaluate, and checks of class names and preprocessing."""
