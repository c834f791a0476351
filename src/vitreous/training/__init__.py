"""Training: a `TrainConfig` in, a run folder out."""
