"""A crawl of any length, with faults and rotations: what it holds does not grow.

`python -m soak.run --minutes 60`, from `tests`.
"""
