"""Reports of measurements: tables, the formats they are rendered in, contact sheets."""
