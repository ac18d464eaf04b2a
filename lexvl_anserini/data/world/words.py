"""The words of the demo world: what five annotators may call the same thing.

Synonyms are the point of the demo: a caption says `crimson vessel at dusk` where another says `red boat in the
evening`, so exact words alone miss. Each list starts with the plainest wording, which is chosen most often.
"""

from __future__ import annotations

from collections.abc import Mapping

Forms = tuple[str, ...]

# kind -> "singular/plural"
NOUNS: Mapping[str, Forms] = {
    "boat": ("boat/boats", "sailboat/sailboats", "vessel/vessels", "sailing boat/sailing boats", "yacht/yachts"),
    "lighthouse": ("lighthouse/lighthouses", "beacon/beacons", "light tower/light towers"),
    "buoy": ("buoy/buoys", "channel marker/channel markers", "marine float/marine floats"),
    "car": ("car/cars", "automobile/automobiles", "vehicle/vehicles", "sedan/sedans"),
    "bus": ("bus/buses", "coach/coaches", "passenger vehicle/passenger vehicles"),
    "truck": ("truck/trucks", "lorry/lorries", "cargo vehicle/cargo vehicles"),
    "train": ("train/trains", "locomotive/locomotives", "railway engine/railway engines"),
    "bicycle": ("bicycle/bicycles", "bike/bikes", "cycle/cycles", "two-wheeler/two-wheelers"),
    "plane": ("plane/planes", "airplane/airplanes", "aircraft/aircraft", "jet/jets"),
    "balloon": ("balloon/balloons", "hot air balloon/hot air balloons", "aerostat/aerostats"),
    "kite": ("kite/kites", "paper flyer/paper flyers", "toy glider/toy gliders"),
    "bird": ("bird/birds", "winged creature/winged creatures", "fowl/fowl", "feathered animal/feathered animals"),
    "duck": ("duck/ducks", "waterfowl/waterfowl", "drake/drakes", "feathered animal/feathered animals"),
    "fish": ("fish/fish", "finned creature/finned creatures", "aquatic creature/aquatic creatures"),
    "dog": ("dog/dogs", "hound/hounds", "canine/canines", "pooch/pooches", "doggy/doggies"),
    "cat": ("cat/cats", "feline/felines", "kitty/kitties", "pussycat/pussycats"),
    "horse": ("horse/horses", "steed/steeds", "equine/equines", "mount/mounts"),
    "cow": ("cow/cows", "bovine/bovines", "heifer/heifers", "farm animal/farm animals"),
    "sheep": ("sheep/sheep", "ewe/ewes", "woolly animal/woolly animals", "farm animal/farm animals"),
    "rabbit": ("rabbit/rabbits", "bunny/bunnies", "hare/hares", "long-eared animal/long-eared animals"),
    "man": ("man/men", "guy/guys", "gentleman/gentlemen", "person/people", "fellow/fellows"),
    "woman": ("woman/women", "lady/ladies", "person/people", "gal/gals"),
    "child": ("child/children", "kid/kids", "youngster/youngsters", "little one/little ones"),
    "house": ("house/houses", "home/homes", "building/buildings", "dwelling/dwellings", "residence/residences"),
    "tree": ("tree/trees", "oak/oaks", "leafy plant/leafy plants", "woody plant/woody plants"),
    "flower": ("flower/flowers", "blossom/blossoms", "bloom/blooms", "flowering plant/flowering plants"),
    "bench": ("bench/benches", "seat/seats", "long seat/long seats"),
    "tent": ("tent/tents", "shelter/shelters", "canvas shelter/canvas shelters", "camp/camps"),
    "umbrella": ("umbrella/umbrellas", "parasol/parasols", "brolly/brollies"),
    "ball": ("ball/balls", "sphere/spheres", "round toy/round toys", "orb/orbs"),
    "snowman": ("snowman/snowmen", "figure made of snow/figures made of snow", "frosty figure/frosty figures"),
    "cup": ("cup/cups", "mug/mugs", "teacup/teacups", "drinking vessel/drinking vessels"),
    "bottle": ("bottle/bottles", "flask/flasks", "glass container/glass containers"),
    "book": ("book/books", "novel/novels", "volume/volumes", "paperback/paperbacks"),
    "lamp": ("lamp/lamps", "light/lights", "light fixture/light fixtures"),
    "clock": ("clock/clocks", "timepiece/timepieces", "wall clock/wall clocks"),
    "teddy": ("teddy bear/teddy bears", "stuffed animal/stuffed animals", "plush toy/plush toys", "teddy/teddies"),
    "chair": ("chair/chairs", "seat/seats", "stool/stools"),
    "table": ("table/tables", "desk/desks", "piece of furniture/pieces of furniture"),
    "bowl": ("bowl/bowls", "aquarium/aquariums", "glass tank/glass tanks", "fishbowl/fishbowls"),
}

# (kind, size) -> nouns that say the size themselves
SIZED_NOUNS: Mapping[tuple[str, str], Forms] = {
    ("boat", "large"): ("ship/ships",),
    ("boat", "small"): ("dinghy/dinghies",),
    ("dog", "small"): ("puppy/puppies", "pup/pups"),
    ("cat", "small"): ("kitten/kittens",),
    ("horse", "small"): ("pony/ponies",),
    ("horse", "large"): ("stallion/stallions",),
    ("cow", "small"): ("calf/calves",),
    ("sheep", "small"): ("lamb/lambs",),
    ("duck", "small"): ("duckling/ducklings",),
    ("child", "small"): ("toddler/toddlers",),
    ("house", "small"): ("cottage/cottages", "hut/huts"),
    ("house", "large"): ("mansion/mansions",),
    ("tree", "small"): ("sapling/saplings",),
    ("plane", "large"): ("airliner/airliners",),
}

# (kind, place) -> nouns that only fit there
PLACE_NOUNS: Mapping[tuple[str, str], Forms] = {
    ("bird", "sea"): ("seabird/seabirds",),
    ("bird", "harbour"): ("seabird/seabirds",),
    ("bird", "beach"): ("seabird/seabirds",),
    ("bench", "park"): ("park bench/park benches",),
    ("ball", "beach"): ("beach ball/beach balls",),
    ("umbrella", "beach"): ("sunshade/sunshades",),
    ("house", "farm"): ("farmhouse/farmhouses",),
    ("house", "forest"): ("cabin/cabins", "lodge/lodges"),
    ("house", "mountain"): ("chalet/chalets", "lodge/lodges"),
}

COLOUR_WORDS: Mapping[str, Forms] = {
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "tangerine", "amber"),
    "yellow": ("yellow", "golden", "lemon"),
    "green": ("green", "emerald", "leaf-green"),
    "blue": ("blue", "azure", "cobalt"),
    "purple": ("purple", "violet", "lilac"),
    "pink": ("pink", "rosy", "magenta"),
    "brown": ("brown", "chestnut", "tan"),
    "black": ("black", "ebony", "dark"),
    "white": ("white", "ivory", "pale"),
    "grey": ("grey", "gray", "silver"),
}

SIZE_WORDS: Mapping[str, Forms] = {
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
}
TALL_WORDS: Mapping[str, Forms] = {"small": ("short", "small"), "large": ("tall", "big")}
PERSON_WORDS: Mapping[str, Forms] = {"small": ("short",), "large": ("tall",)}
TALL_KINDS = frozenset({"tree", "lighthouse", "house", "lamp", "bottle"})

# of one thing, besides a and an
ONE_WORDS: Forms = ("one", "a single", "a lone")
# count -> determiner
COUNT_WORDS: Mapping[int, Forms] = {
    2: ("two", "a pair of", "a couple of"),
    3: ("three", "a trio of", "a few"),
    4: ("four", "a group of", "several"),
}

# what people wear: "singular/plural", {} is the colour; only some colour words stand alone
CLOTHES: Forms = (
    "in {}/in {}",
    "wearing {}/wearing {}",
    "dressed in {}/dressed in {}",
    "in {a} shirt/in {} shirts",
    "wearing {a} jacket/wearing {} jackets",
    "in {a} coat/in {} coats",
)
GARMENTS: Forms = CLOTHES[3:]
ONLY_ADJECTIVES = frozenset({"pale", "dark", "rosy", "golden", "chestnut", "tan", "leaf-green", "lemon"})

# pose or "kind pose" -> "ing/singular/plural"
VERBS: Mapping[str, Forms] = {
    "sailing": ("sailing/sails/sail", "floating/floats/float", "drifting/drifts/drift", "cruising/cruises/cruise"),
    "moored": (
        "moored/is moored/are moored",
        "anchored/is anchored/are anchored",
        "at anchor/lies at anchor/lie at anchor",
    ),
    "floating": ("floating/floats/float", "bobbing/bobs/bob", "drifting/drifts/drift"),
    "balloon floating": ("floating/floats/float", "drifting/drifts/drift", "hovering/hovers/hover", "flying/flies/fly"),
    "driving": ("driving/drives/drive", "moving/moves/move", "travelling/travels/travel", "rolling/rolls/roll"),
    "moving": ("moving/moves/move", "travelling/travels/travel", "passing/passes/pass"),
    "stopped": ("stopped/is stopped/are stopped", "waiting/waits/wait", "standing still/stands still/stand still"),
    "parked": (
        "parked/is parked/are parked",
        "stopped/is stopped/are stopped",
        "standing still/stands still/stand still",
    ),
    "flying": ("flying/flies/fly", "soaring/soars/soar", "gliding/glides/glide"),
    "fluttering": ("fluttering/flutters/flutter", "flying/flies/fly", "dancing/dances/dance"),
    "perched": ("perched/is perched/are perched", "sitting/sits/sit", "resting/rests/rest"),
    "paddling": ("paddling/paddles/paddle", "swimming/swims/swim", "floating/floats/float"),
    "swimming": ("swimming/swims/swim", "gliding/glides/glide", "darting/darts/dart"),
    "standing": ("standing/stands/stand",),
    "tree standing": ("standing/stands/stand", "growing/grows/grow"),
    "lighthouse standing": ("standing/stands/stand", "rising/rises/rise", "towering/towers/tower"),
    "man standing": ("standing/stands/stand", "waiting/waits/wait", "posing/poses/pose"),
    "woman standing": ("standing/stands/stand", "waiting/waits/wait", "posing/poses/pose"),
    "child standing": ("standing/stands/stand", "waiting/waits/wait", "posing/poses/pose"),
    "sitting": ("sitting/sits/sit", "seated/is seated/are seated", "resting/rests/rest"),
    "lying": ("lying/lies/lie", "resting/rests/rest"),
    "dog lying": ("lying down/lies down/lie down", "resting/rests/rest", "sleeping/sleeps/sleep", "napping/naps/nap"),
    "cat lying": ("lying down/lies down/lie down", "resting/rests/rest", "sleeping/sleeps/sleep", "napping/naps/nap"),
    "cow lying": ("lying down/lies down/lie down", "resting/rests/rest"),
    "running": ("running/runs/run", "racing/races/race", "dashing/dashes/dash"),
    "horse running": ("running/runs/run", "galloping/gallops/gallop", "trotting/trots/trot"),
    "rabbit running": ("running/runs/run", "hopping/hops/hop"),
    "man running": ("running/runs/run", "jogging/jogs/jog"),
    "woman running": ("running/runs/run", "jogging/jogs/jog"),
    "walking": ("walking/walks/walk", "strolling/strolls/stroll", "wandering/wanders/wander"),
    "duck walking": ("walking/walks/walk", "waddling/waddles/waddle"),
    "grazing": ("grazing/grazes/graze", "feeding/feeds/feed", "eating/eats/eat"),
    "growing": ("growing/grows/grow", "sprouting/sprouts/sprout"),
    "pitched": ("pitched/is pitched/are pitched", "set up/is set up/are set up"),
    "open": ("standing open/stands open/stand open", "opened/is open/are open", "put up/is put up/are put up"),
}

RELATION_WORDS: Mapping[str, Forms] = {
    "left of": ("to the left of", "on the left side of", "next to", "beside", "by", "near"),
    "right of": ("to the right of", "on the right side of", "next to", "beside", "by", "near"),
    "next to": ("next to", "beside", "by", "near", "alongside", "close to"),
    "in front of": ("in front of", "near", "before"),
    "behind": ("behind", "at the back of", "in back of"),
    "above": ("above", "over", "high above"),
    "under": ("under", "beneath", "underneath", "below"),
    "on": ("on", "on top of", "atop", "upon"),
    "in": ("in", "inside", "aboard"),
}
INVERSE: Mapping[str, str] = {
    "left of": "right of",
    "right of": "left of",
    "next to": "next to",
    "in front of": "behind",
    "behind": "in front of",
    "above": "under",
    "under": "above",
}

# relations told by a verb, "kind of the landmark" -> "ing/singular/plural"
DEEDS: Mapping[tuple[str, str], Forms] = {
    ("riding", "horse"): (
        "riding/rides/ride",
        "mounted on/is mounted on/are mounted on",
        "on the back of/is on/are on",
    ),
    ("riding", "bicycle"): ("riding/rides/ride", "on/is on/are on", "pedaling/pedals/pedal"),
    ("holding", "umbrella"): (
        "holding/holds/hold",
        "under/is under/are under",
        "carrying/carries/carry",
        "sheltered by/is sheltered by/are sheltered by",
    ),
    ("holding", ""): ("holding/holds/hold", "with/has/have", "carrying/carries/carry"),
    ("flying", ""): ("flying/flies/fly", "playing with/plays with/play with", "with/has/have"),
    ("reading", ""): ("reading/reads/read", "looking at/looks at/look at", "with/has/have"),
}

# where things on the ground or the water are
PLACE_PHRASES: Mapping[str, Forms] = {
    "sea": ("on the sea", "on the ocean", "at sea", "on the waves", "on salt water"),
    "lake": ("on a lake", "on a pond", "on fresh water", "on an inland water"),
    "harbour": ("in a harbor", "in the port", "at the marina", "by the docks"),
    "beach": ("on the beach", "at the seaside", "on the sand", "on the shore", "along the coast"),
    "field": ("in a field", "in a meadow", "in the grass", "on a grassy plain", "in the countryside"),
    "farm": ("on a farm", "in a barnyard", "on a ranch", "in a fenced pasture"),
    "forest": ("in the forest", "in the woods", "among tall trunks", "in a woodland"),
    "mountain": ("in the mountains", "on a hillside", "below rocky peaks", "in the highlands"),
    "desert": ("in the desert", "among the dunes", "on dry land", "in a barren landscape"),
    "park": ("in a park", "on the lawn", "in the public gardens", "on parkland"),
    "street": ("on the street", "on a road", "in the city", "in town", "along an avenue"),
    "garden": ("in a garden", "in the backyard", "in the yard", "between flower beds"),
    "snow": ("in the snow", "on frozen ground", "in a wintry landscape", "on a snow-covered plain"),
    "kitchen": ("in a kitchen", "in the kitchen", "where people cook", "in a cooking area"),
    "living room": ("in a living room", "in the lounge", "in a parlor", "in a sitting room", "indoors"),
    "bedroom": ("in a bedroom", "in a room with a bed", "in sleeping quarters", "indoors"),
}
# what things in the air are over
PLACE_NAMES: Mapping[str, Forms] = {
    "sea": ("the sea", "the ocean", "the waves", "salt water"),
    "lake": ("a lake", "a pond", "fresh water"),
    "harbour": ("a harbor", "the port", "the docks"),
    "beach": ("the beach", "the sand", "the shore", "the coast"),
    "field": ("a field", "a meadow", "the grass", "the countryside"),
    "farm": ("a farm", "a barnyard", "a ranch"),
    "forest": ("the forest", "the woods", "the treetops"),
    "mountain": ("the mountains", "rocky peaks", "the highlands"),
    "desert": ("the desert", "the dunes", "dry land"),
    "park": ("a park", "the lawn", "parkland"),
    "street": ("the street", "the city", "the town"),
    "garden": ("a garden", "the backyard", "flower beds"),
    "snow": ("the snow", "frozen ground", "a snow-covered plain"),
}

# {} is the word for the time of day
WEATHER_PHRASES: Mapping[tuple[str, str], Forms] = {
    ("clear", "day"): ("in the sunshine", "under a clear sky", "under the bright sun", "in fine weather"),
    ("clear", "night"): ("under the stars", "under a clear sky", "by moonlight", "under the moon"),
    ("clear", ""): ("under a clear sky", "in fine weather"),
    ("cloudy", ""): ("under a cloudy sky", "under clouds", "in dull weather", "under an overcast sky"),
    ("rain", ""): ("in the rain", "in wet weather", "during a shower", "in a downpour"),
    ("snow", ""): ("in falling snow", "during a snowfall", "among snowflakes", "in a flurry"),
    ("fog", ""): ("in the fog", "in thick mist", "in the haze", "in murky air"),
    ("storm", ""): ("in a storm", "during a thunderstorm", "under lightning", "in rough weather"),
    ("rainbow", ""): ("under a rainbow", "with a rainbow in the sky", "below a colorful arc"),
}
WINDOW_PHRASES: Mapping[str, Forms] = {
    "clear": ("with a clear sky outside",),
    "rain": ("while it rains outside", "with rain on the window", "on a wet {}"),
    "snow": ("while it snows outside", "with snow outside the window", "on a wintry {}"),
}
TIME_PHRASES: Mapping[str, Forms] = {
    "day": ("during the day", "in daylight", "in the afternoon", "in broad daylight"),
    "night": ("at night", "in the dark", "after dark", "late at night", "at midnight"),
    "sunset": ("at sunset", "at dusk", "in the evening", "at twilight", "at nightfall"),
    "dawn": ("at dawn", "at sunrise", "early in the morning", "at daybreak"),
}
WEATHER_ADJECTIVES: Mapping[tuple[str, str], Forms] = {
    ("clear", "day"): ("sunny", "bright", "cloudless"),
    ("clear", "night"): ("clear", "starry", "moonlit"),
    ("clear", ""): ("clear", "cloudless", "fine"),
    ("cloudy", ""): ("cloudy", "gloomy", "overcast"),
    ("rain", ""): ("rainy", "wet", "drizzly"),
    ("snow", ""): ("snowy", "wintry", "freezing"),
    ("fog", ""): ("foggy", "misty", "hazy"),
    ("storm", ""): ("stormy", "thundery", "tempestuous"),
    ("rainbow", ""): ("colorful", "rain-washed"),
}
# of a scene as a whole: "a rainy dusk in the city"
TIME_NOUNS: Mapping[str, Forms] = {
    "day": ("day", "afternoon"),
    "night": ("night",),
    "sunset": ("evening", "sunset", "dusk"),
    "dawn": ("morning", "dawn", "sunrise"),
}
# after "on a"
ON_TIME_NOUNS: Mapping[str, Forms] = {
    "day": ("day", "afternoon"),
    "night": ("night",),
    "sunset": ("evening",),
    "dawn": ("morning",),
}

BACKDROP_PHRASES: Forms = (
    "with {} in the background",
    "with {} in the distance",
    "with {} behind",
    "with {} farther away",
)
OPENINGS: Forms = ("a picture of", "a photo of", "a view of", "an image showing", "a scene with")
