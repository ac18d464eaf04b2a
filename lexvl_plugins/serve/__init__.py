"""The search page: a server over open indexes with a JSON API, and one page of HTML, CSS and JavaScript (`page/`)."""
