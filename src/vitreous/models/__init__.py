"""The networks: the paper's ViT, its variants by name, and the ResNet baseline."""
