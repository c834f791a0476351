"""The explorer's web server."""
