"""What measurements look like: tables, rendered formats, contact sheets."""
