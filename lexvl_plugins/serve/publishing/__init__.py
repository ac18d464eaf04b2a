"""The search page as a folder of files that need no server."""
