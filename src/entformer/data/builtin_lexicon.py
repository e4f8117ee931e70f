"""The words of the built-in English-German corpus. In: nothing. Out: word lists by what can be said of them.

Every English word here has one German translation and only one, so that a sentence has exactly one translation too: "doctor"
is always "Ärztin", "tall" and "big" are both "groß", "fish" (one or many?) does not occur. Compounds are put together from
parts, so most of them are rare and BPE has to split them.
"""

from entformer.data.builtin_words import Adjective, Noun, adjective, compound, noun


def _nouns(table: str, pronoun: str = "it") -> list[Noun]:
    return [noun(row, pronoun) for row in table.strip().splitlines()]


MEN = _nouns(
    """
    man / men | Mann m Männer
    boy | Junge m ~n ~n
    neighbour | Nachbar m ~n ~n
    teacher | Lehrer m ~
    student | Student m ~en ~en
    tourist | Tourist m ~en ~en
    musician | Musiker m ~
    cook | Koch m Köche
    farmer | Bauer m ~n ~n
    policeman / policemen | Polizist m ~en ~en
    nurse | Krankenpfleger m ~
    waiter | Kellner m ~
    baker | Bäcker m ~
    photographer | Fotograf m ~en ~en
    """,
    "he",
)
WOMEN = _nouns(
    """
    woman / women | Frau f ~en
    doctor | Ärztin f ~nen
    engineer | Ingenieurin f ~nen
    mechanic | Mechanikerin f ~nen
    policewoman / policewomen | Polizistin f ~nen
    painter | Malerin f ~nen
    actress | Schauspielerin f ~nen
    gardener | Gärtnerin f ~nen
    pilot | Pilotin f ~nen
    """,
    "she",
)
KIN = [  # people who are somebody's: "his sister", "Anna's uncle"
    *_nouns(
        """
        father | Vater m Väter
        brother | Bruder m Brüder
        grandfather | Großvater m Großväter
        uncle | Onkel m ~
        friend | Freund m ~e
        """,
        "he",
    ),
    *_nouns(
        """
        mother | Mutter f Mütter
        sister | Schwester f ~n
        grandmother | Großmutter f Großmütter
        aunt | Tante f ~n
        """,
        "she",
    ),
]
GIRL = noun("girl | Mädchen n ~", "she")
CHILD = noun("child / children | Kind n ~er")
BABY = noun("baby | Baby n ~s ~s")
NAMES = [
    *[
        Noun(name, name, "f", (name, name, name, name + "s"), ("", "", "", ""), "she")
        for name in ("Anna", "Maria", "Lena", "Julia", "Eva")
    ],
    *[
        Noun(name, name, "m", (name, name, name, name + "s"), ("", "", "", ""), "he")
        for name in ("Peter", "Paul", "Martin", "David", "Jan")
    ],
]
ANIMALS = _nouns(
    """
    dog | Hund m ~e
    cat | Katze f ~n
    horse | Pferd n ~e
    bird | Vogel m Vögel
    cow | Kuh f Kühe
    duck | Ente f ~n
    rabbit | Kaninchen n ~
    monkey | Affe m ~n ~n
    elephant | Elefant m ~en ~en
    bear | Bär m ~en ~en
    goat | Ziege f ~n
    """
)
READABLE = _nouns(
    """
    book | Buch n Bücher
    newspaper | Zeitung f ~en
    letter | Brief m ~e
    magazine | Zeitschrift f ~en
    e-mail | E-Mail f ~s
    report | Bericht m ~e
    """
)
CLOTHES = _nouns(
    """
    coat | Mantel m Mäntel
    hat | Hut m Hüte
    jacket | Jacke f ~n
    shirt | Hemd n ~en
    dress | Kleid n ~er
    skirt | Rock m Röcke
    T-shirt | T-Shirt n ~s ~s
    scarf / scarves | Schal m ~s ~s
    cap | Mütze f ~n
    """
)
VEHICLES = _nouns(
    """
    car | Auto n ~s ~s
    bicycle | Fahrrad n Fahrräder Fahrrads
    e-bike | E-Bike n ~s ~s
    boat | Boot n ~e
    truck | Lastwagen m ~
    taxi | Taxi n ~s ~s
    bus | Bus m ~se ~ses
    fire truck | Feuerwehrwagen m ~
    ambulance | Krankenwagen m ~
    police car | Polizeiwagen m ~
    tram | Straßenbahn f ~en
    """
)
TRANSPORT = _nouns(
    """
    train | Zug m Züge
    bus | Bus m ~se ~ses
    subway train | U-Bahn f ~en
    tram | Straßenbahn f ~en
    school bus | Schulbus m ~se ~ses
    plane | Flugzeug n ~e
    """
)
FRUIT = _nouns(
    """
    apple | Apfel m Äpfel
    orange | Orange f ~n
    egg | Ei n ~er
    banana | Banane f ~n
    potato / potatoes | Kartoffel f ~n
    onion | Zwiebel f ~n
    """
)
DRINKS = _nouns(  # mass nouns: no article, no plural
    """
    water | Wasser n -
    milk | Milch f -
    coffee | Kaffee m -
    tea | Tee m -
    """
)
FOOTBALL, CHESS = _nouns("football | Fußball m -\n chess | Schach n -")
SOUP, CAKE, SALAD, JUICE = _nouns("soup | Suppe f ~n\n cake | Kuchen m ~\n salad | Salat m ~e\n juice | Saft m Säfte")
THINGS = _nouns(
    """
    picture | Bild n ~er
    box | Kiste f ~n
    bag | Tasche f ~n
    umbrella | Regenschirm m ~e Regenschirms
    camera | Kamera f ~s
    guitar | Gitarre f ~n
    ball | Ball m Bälle
    mirror | Spiegel m ~
    basket | Korb m Körbe
    suitcase | Koffer m ~
    ladder | Leiter f ~n
    hammer | Hammer m Hämmer
    vase | Vase f ~n
    """
)
TABLE, CHAIR, LAMP, CLOCK, CUPBOARD, KEY, DOOR, WINDOW = _nouns(
    """
    table | Tisch m ~e
    chair | Stuhl m Stühle
    lamp | Lampe f ~n
    clock | Uhr f ~en
    cupboard | Schrank m Schränke
    key | Schlüssel m ~
    door | Tür f ~en
    window | Fenster n ~
    """
)
SHOP, FACTORY, SELLER, THIEF, DRIVER = (
    noun("shop | Laden m Läden"),
    noun("factory | Fabrik f ~en"),
    noun("seller | Verkäufer m ~", "he"),
    noun("thief / thieves | Dieb m ~e", "he"),
    noun("driver | Fahrer m ~", "he"),
)
SHOE, RADIO, TELEVISION, MACHINE = _nouns(
    "shoe | Schuh m ~e\n radio | Radio n ~s ~s\n television | Fernseher m ~\n washing machine | Waschmaschine f ~n"
)

_ROOMS = {
    "kitchen": "Küchen",
    "garden": "Garten",
    "school": "Schul",
    "office": "Büro",
    "cellar": "Keller",
    "living room": "Wohnzimmer",
    "bedroom": "Schlafzimmer",
    "hotel": "Hotel",
}
_GOODS = {
    "flower": "Blumen",
    "shoe": "Schuh",
    "toy": "Spielzeug",
    "furniture": "Möbel",
    "handbag": "Handtaschen",
    "chocolate": "Schokoladen",
    "bicycle": "Fahrrad",
    "clock": "Uhren",
    "carpet": "Teppich",
    "hat": "Hut",
    "cheese": "Käse",
    "lamp": "Lampen",
    "glass": "Glas",
    "piano": "Klavier",
    "guitar": "Gitarren",
    "T-shirt": "T-Shirt-",
    "e-bike": "E-Bike-",
}
_DRIVEN = {
    "bus": "Bus",
    "school bus": "Schulbus",
    "city bus": "Stadtbus",
    "truck": "Lastwagen",
    "fire truck": "Feuerwehrwagen",
    "ambulance": "Krankenwagen",
    "taxi": "Taxi",
    "tram": "Straßenbahn",
    "subway train": "U-Bahn-",
}
_FOOD = {
    "apple": "Apfel",
    "cherry": "Kirsch",
    "plum": "Pflaumen",
    "chocolate": "Schokoladen",
    "cheese": "Käse",
    "carrot": "Karotten",
}
_VEGETABLES = {"vegetable": "Gemüse", "tomato": "Tomaten", "potato": "Kartoffel", "onion": "Zwiebel", "carrot": "Karotten"}
_WEAR = {"winter": "Winter", "summer": "Sommer", "rain": "Regen", "leather": "Leder", "sports": "Sport"}


def _compounds(parts: dict[str, str], *heads: Noun) -> list[Noun]:
    return [compound(english, german, head) for head in heads for english, german in parts.items()]


FURNITURE = [TABLE, CHAIR, LAMP, CLOCK, CUPBOARD, *_compounds(_ROOMS, TABLE, CHAIR, LAMP, CLOCK, CUPBOARD)]
OPENINGS = [DOOR, WINDOW, *_compounds(_ROOMS, DOOR, WINDOW)]  # what one opens and closes
KEYS = [KEY, *_compounds({"house": "Haus", "car": "Auto", "bicycle": "Fahrrad", **_ROOMS}, KEY)]
SWITCHED = [RADIO, TELEVISION, MACHINE, LAMP, *_compounds(_ROOMS, LAMP)]  # what one turns on and off
SHOPS = _compounds(_GOODS, SHOP, FACTORY)
TRADES = [  # people named by a compound
    *_compounds(_GOODS, SELLER),
    *_compounds(_DRIVEN, DRIVER),
    *_compounds({key: _GOODS[key] for key in ("handbag", "bicycle", "clock", "piano", "e-bike")}, THIEF),
]
WEAR = [*CLOTHES, *_compounds(_WEAR, CLOTHES[0], CLOTHES[2], CLOTHES[8])]
HEADWEAR = ("hat", "cap", "scarf")  # one puts it on one's head or neck, for which German has words of its own
SHOES = [SHOE, *_compounds(_WEAR, SHOE)]
SOUPS = [SOUP, *_compounds(_VEGETABLES, SOUP)]
CAKES = [CAKE, *_compounds(_FOOD, CAKE)]
SALADS = [SALAD, *_compounds(_VEGETABLES, SALAD)]
JUICES = _compounds(
    {"apple": "Apfel", "cherry": "Kirsch", "tomato": "Tomaten", "carrot": "Karotten", "plum": "Pflaumen"}, JUICE
)

# ---- places: English preposition, German preposition with the dative, and the noun ----------------------------------------


def _places(table: str) -> list[tuple[str, str, Noun]]:
    rows = [(*line.partition(":")[0].split(), line.partition(":")[2]) for line in table.strip().splitlines()]
    return [(english, german, noun(row)) for english, german, row in rows]


PLACES = _places(
    """
    in in: park | Park m ~s ~s
    in in: garden | Garten m Gärten
    in in: forest | Wald m Wälder
    in in: kitchen | Küche f ~n
    in in: office | Büro n ~s ~s
    in in: church | Kirche f ~n
    in in: hospital | Krankenhaus n Krankenhäuser
    in in: museum | Museum n Museen
    in in: restaurant | Restaurant n ~s ~s
    in in: library | Bibliothek f ~en
    in in: hotel | Hotel n ~s ~s
    in in: village | Dorf n Dörfer
    in in: city | Stadt f Städte
    in in: swimming pool | Schwimmbad n Schwimmbäder Schwimmbads
    in auf: street | Straße f ~n
    at in: school | Schule f ~n
    at an: station | Bahnhof m Bahnhöfe Bahnhofs
    at an: airport | Flughafen m Flughäfen
    at an: harbour | Hafen m Häfen
    at an: bus stop | Bushaltestelle f ~n
    at auf: market | Markt m Märkte
    by an: river | Fluss m Flüsse ~es
    by an: lake | See m ~n ~s
    on an: beach | Strand m Strände
    on auf: bridge | Brücke f ~n
    on auf: playground | Spielplatz m Spielplätze
    on auf: square | Platz m Plätze
    on auf: farm | Bauernhof m Bauernhöfe Bauernhofs
    """
)
HOUSE, TREE, BENCH, SOFA, WALL, ROOF, HILL, BED = _nouns(
    """
    house | Haus n Häuser
    tree | Baum m Bäume
    bench / benches | Bank f Bänke
    sofa | Sofa n ~s ~s
    wall | Mauer f ~n
    roof | Dach n Dächer
    hill | Hügel m ~
    bed | Bett n ~en
    """
)
SEATS = [BENCH, SOFA, CHAIR, WALL, ROOF, *_compounds({"garden": "Garten", "kitchen": "Küchen"}, BENCH)]
LANDMARKS = [
    HOUSE,
    TREE,
    WALL,
    *(place for english, _, place in PLACES if english in ("at", "in") and place.english not in ("city", "village")),
]

# ---- adjectives ----------------------------------------------------------------------------------------------------------


def _adjectives(*rows: str) -> list[Adjective]:
    return [adjective(row) for row in rows]


OF_PEOPLE = _adjectives(
    "young | jung", "old | alt", "tall | groß", "friendly | freundlich", "tired | müde müd", "happy | glücklich",
    "sad | traurig", "famous | berühmt", "elegant | elegant", "red-haired | rothaarig", "left-handed | linkshändig",
    "sixty-year-old | sechzigjährig", "strong | stark",
)  # fmt: skip
OF_CHILDREN = _adjectives(
    "small | klein", "happy | glücklich", "tired | müde müd", "blond | blond", "curious | neugierig", "red-haired | rothaarig",
    "four-year-old | vierjährig", "six-year-old | sechsjährig", "ten-year-old | zehnjährig",
)  # fmt: skip
OF_ANIMALS = _adjectives(
    "small | klein", "big | groß", "black | schwarz", "white | weiß", "brown | braun", "hungry | hungrig", "wild | wild",
    "long-haired | langhaarig", "old | alt", "young | jung",
)  # fmt: skip
COLOURS = _adjectives(
    "red | rot", "blue | blau", "green | grün", "yellow | gelb", "white | weiß", "black | schwarz", "brown | braun",
    "grey | grau", "dark-blue | dunkelblau", "light-green | hellgrün",
)  # fmt: skip
OF_THINGS = _adjectives(
    "new | neu", "old | alt", "big | groß", "small | klein", "beautiful | schön", "expensive | teuer teur", "cheap | billig",
    "heavy | schwer", "dirty | schmutzig", "clean | sauber", "old-fashioned | altmodisch", "brand-new | nagelneu",
)  # fmt: skip
OF_TEXTS = _adjectives("long | lang", "short | kurz", "new | neu", "old | alt", "important | wichtig")
OF_FOOD = _adjectives(
    "fresh | frisch", "sweet | süß", "big | groß", "small | klein", "cheap | billig", "expensive | teuer teur"
)
OF_DRINKS = _adjectives("hot | heiß", "cold | kalt", "warm | warm", "fresh | frisch")
OF_PLACES = _adjectives(
    "big | groß", "small | klein", "beautiful | schön", "quiet | ruhig", "old | alt", "new | neu", "famous | berühmt"
)  # the first four also fit nature
MOODS = _adjectives(
    "tired | müde",
    "hungry | hungrig",
    "thirsty | durstig",
    "happy | glücklich",
    "sad | traurig",
    "ill | krank",
    "angry | wütend",
)
# Adjective, then the comparative in both languages.
COMPARED = [
    ("older", "älter"), ("newer", "neuer"), ("bigger", "größer"), ("smaller", "kleiner"), ("more expensive", "teurer"),
    ("cheaper", "billiger"), ("heavier", "schwerer"), ("more beautiful", "schöner"),
]  # fmt: skip
