"""How many fetches may be one too many."""

from chaos.site import Pages
from chaos.trial import CRAWLERS, Outcome


def most_again(outcome: Outcome, pages: Pages) -> int:
    """Return how often pages may be fetched again, in all, after what has struck."""
    # PRELIMINARY: as long as the server is not there or has forgotten, each crawler is on its own.
    return CRAWLERS * len(pages.lasting) * (1 + len(outcome.struck))
