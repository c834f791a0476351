"""Readers that check untrusted files before they build anything from them."""
