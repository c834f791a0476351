"""The explorer: a web page on this machine, and the files that a report's page is made of."""
