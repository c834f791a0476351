"""One module a verb: each parses, calls the library and prints. torch is imported only once a verb runs."""
