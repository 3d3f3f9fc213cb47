"""Fell & Ford, an outdoor magazine that does not exist: the site that the example project crawls.

It has what real sites have: navigation on every page, paginated listings, an archive whose
links write their parameters in any order, moved pages, dead links, links to elsewhere, a sitemap
and a calendar without end. It is the same on every machine, so it can say what a perfect crawl
fetches.
"""
