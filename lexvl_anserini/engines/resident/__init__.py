"""Resident postings: the impacts of a Lucene index in a mapped file, searched by compiled kernels without Java.

`layout.py` has the file, `packing.py` writes it from Lucene's postings, `kernels.py` searches it, `loading.py` compiles
or loads the kernels, `searching.py` answers batches of queries.
"""
