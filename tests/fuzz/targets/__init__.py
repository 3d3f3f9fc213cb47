"""All targets, by name."""

from fuzz.target import Target
from fuzz.targets import archives, claims, migrations, replies, rings, settings

TARGETS: dict[str, Target] = {
    "settings": settings.TARGET,
    "headers": rings.HEADERS,
    "rings": rings.RINGS,
    "claims": claims.CLAIMS,
    "requests": claims.REQUESTS,
    "archives": archives.TARGET,
    "replies": replies.TARGET,
    "urls": migrations.URLS,
}
