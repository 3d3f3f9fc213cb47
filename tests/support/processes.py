"""Processes are forked from one without connections, which a child would share."""

import multiprocessing

clean = multiprocessing.get_context("forkserver")
clean.set_forkserver_preload(["scrapy_bloom"])
