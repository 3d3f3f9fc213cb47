"""Claims: which URL is being crawled by which worker, and when it counts as seen."""
