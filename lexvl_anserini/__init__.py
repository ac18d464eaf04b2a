"""Lexical vision-language retrieval on Lucene."""
