"""The magazine's prose: seeded, so that a story reads the same on every machine."""

from random import Random

SECTIONS = {
    "hiking": ("the ridge", "the pass", "the old drove road", "the summit cairn", "the bealach"),
    "climbing": ("the crag", "the slab", "the chimney pitch", "the north face", "the belay ledge"),
    "paddling": ("the loch", "the weir", "the tidal race", "the estuary", "the put-in"),
    "cycling": ("the gravel track", "the ford", "the forest road", "the col", "the towpath"),
    "camping": ("the meadow", "the pinewood", "the lee of the wall", "the shingle bar"),
    "skiing": ("the bowl", "the couloir", "the plateau", "the hut", "the wind lip"),
    "caving": ("the sump", "the main chamber", "the streamway", "the squeeze", "the pot"),
    "gear": ("the workshop", "the test bench", "the rain room", "the stove lab"),
}
TOPICS = (
    *("autumn", "beginners", "bothies", "families", "islands", "long-distance"),
    *("navigation", "safety", "solo", "weather", "weekends", "winter"),
)

_OPENINGS = ("A Cold", "A Short", "A Slow", "Alone on", "Beyond", "Three Days at", "Return to")
_PLACES = (
    *("Arkle", "Brae Moor", "Calder Head", "Dun Tor", "Eskdale", "Fenwick Edge", "Glen Orrin"),
    *("Harter Crag", "Innis Water", "Kinder Gap", "Langdale", "Mell Fell", "Nether Beck"),
)
_TIMES = ("Before dawn", "By noon", "After the rain", "An hour later", "Late in the day")
_ACTIONS = (
    "we stopped to look at the map and found that {place} was further off than it looked",
    "the wind came over {place} and took the warmth out of our hands",
    "there was nobody at {place} but a walker from the next valley",
    "the forecast and {place} had stopped agreeing with each other",
    "we ate the last of the bread at {place} and turned for home",
    "{place} was in cloud, and we counted our paces",
)
_ADVICE = (
    "Carry a spare layer even in July.",
    "The bus on the valley road runs twice a day, and not on Sundays.",
    "Water is easy to find; dry wood is not.",
    "Allow half a day more than the guidebook does.",
    "The ground nests from April to June, so keep to the path.",
    "Phones lose their signal after the second gate.",
)


def title(random: Random) -> str:
    """A headline such as "Three Days at Dun Tor"."""
    return f"{random.choice(_OPENINGS)} {random.choice(_PLACES)}"


def paragraph(random: Random, section: str) -> str:
    """Four or five sentences about a section's landscape."""
    places = SECTIONS[section]
    sentences = [
        f"{random.choice(_TIMES)}, {random.choice(_ACTIONS).format(place=random.choice(places))}."
        for _ in range(random.randint(3, 4))
    ]
    return " ".join([*sentences, random.choice(_ADVICE)])
