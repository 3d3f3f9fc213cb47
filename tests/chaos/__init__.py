"""Crawls in trouble: the network, the server and the crawlers fail at random, seeded moments.

The claim to be shown: under `BLOOM_REMEMBER = "crawled"`, whatever happens, no page is hidden.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "example_project"
# pytest has it on its path; `python -m chaos.run` has not.
if str(PROJECT) not in sys.path:
    sys.path.append(str(PROJECT))
