"""Ways to the same answer in less time; `models/` stays the readable paper."""
