"""All targets, by name."""

from fuzz.target import Target
from fuzz.targets import addresses, archives, claims, migrations, replies, rings, settings

TARGETS: dict[str, Target] = {
    "settings": settings.TARGET,
    "addresses": addresses.TARGET,
    "headers": rings.HEADERS,
    "rings": rings.RINGS,
    "claims": claims.CLAIMS,
    "requests": claims.REQUESTS,
    "archives": archives.TARGET,
    "replies": replies.TARGET,
    "seen": migrations.SEEN,
    "urls": migrations.URLS,
    "members": migrations.MEMBERS,
}
