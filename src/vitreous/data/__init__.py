"""Images, preprocessing, datasets and augmentation."""
