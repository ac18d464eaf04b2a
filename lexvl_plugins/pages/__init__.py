"""Pages of PDFs, scans and pictures: their pictures and their words, read in processes that may crash or hang."""
