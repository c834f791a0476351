"""Pictures and labelled sets of them."""
