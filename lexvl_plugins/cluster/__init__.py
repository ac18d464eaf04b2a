"""Where the work on the parts of a corpus is done: in this process, or by the processes of a cluster."""
