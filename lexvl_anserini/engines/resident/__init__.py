"""Resident postings: the impacts of a Lucene index in a mapped file, searched by compiled kernels without Java.

`layout.py` has the file, `packing.py` writes it with Java, `choosing.py` says whether it serves and loads it,
`searching.py` answers batches of queries with the kernels of `kernels.py`.
"""
