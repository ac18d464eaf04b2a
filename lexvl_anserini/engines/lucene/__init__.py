"""The engine for impacts: Lucene, in which a term's frequency is its impact and a score is the integer dot product.

The index is what stock Anserini would write (fields, options, similarity), so that stock `LuceneImpactSearcher`
reads it; but every impact goes in as one term frequency where stock repeats the term that many times. Searching adds
products term by term over Lucene's postings, and orders as stock sorts: score descending, then doc_id ascending.
"""
