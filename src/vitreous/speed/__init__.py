"""The same answer in less time: backends, int8 and fp8, export, token merging; `models/` stays the paper."""
