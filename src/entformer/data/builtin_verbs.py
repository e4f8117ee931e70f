"""The verbs of the built-in corpus and what they are done to. In: nothing. Out: frames, a verb with the nouns that fit it.

A frame keeps sentences sensible: one reads a letter and feeds a duck. Rows are read by `builtin_words.verb`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from entformer.data import builtin_lexicon as words
from entformer.data.builtin_words import Adjective, Noun, Verb, verb

PERSONS: tuple[Noun, ...] = (
    *words.MEN, *words.WOMEN, words.GIRL, words.CHILD, words.GIRL, words.CHILD, *words.MEN[:2], words.WOMEN[0], *words.WOMEN,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    verb: Verb
    objects: tuple[Noun, ...] = ()
    adjectives: tuple[Adjective, ...] = ()  # that fit these objects
    kind: str = "things"  # "things", "persons", "animals", "mass"
    placed: bool = True  # a place may be told: one buys a hat at the market, but opens a door where it is


def _frames(
    table: str, objects: Sequence[Noun], adjectives: Sequence[Adjective], kind: str = "things", *, placed: bool = True
) -> list[Frame]:
    return [Frame(verb(row), tuple(objects), tuple(adjectives), kind, placed) for row in table.strip().splitlines()]


_LOOKS = [*words.COLOURS, *words.OF_THINGS]
_GOODS = [*words.CLOTHES, *words.THINGS, *words.FURNITURE, *words.SHOES, *words.VEHICLES[:4], *words.THINGS]

DO = [  # an accusative object
    *_frames("read reads reading read | lesen liest gelesen", words.READABLE, words.OF_TEXTS),
    *_frames("write writes writing wrote | schreiben schreibt geschrieben", words.READABLE[2:], words.OF_TEXTS[:2]),
    *_frames(
        """
        buy buys buying bought | kaufen kauft gekauft
        sell sells selling sold | verkaufen verkauft verkauft
        look_for looks_for looking_for looked_for | suchen sucht gesucht
        """,
        _GOODS,
        _LOOKS,
    ),
    *_frames(
        """
        carry carries carrying carried | tragen trägt getragen
        hold holds holding held | halten hält gehalten
        pack packs packing packed | ein|packen packt eingepackt
        throw_away throws_away throwing_away threw_away | weg|werfen wirft weggeworfen
        """,
        words.THINGS,
        _LOOKS,
    ),
    *_frames("look_for looks_for looking_for looked_for | suchen sucht gesucht", words.KEYS, words.OF_THINGS[:4], placed=False),
    *_frames(
        "eat eats eating ate | essen isst gegessen", [*words.FRUIT, *words.SALADS], [words.OF_FOOD[0], *words.OF_FOOD[2:]]
    ),
    *_frames("eat eats eating ate | essen isst gegessen", words.CAKES, words.OF_FOOD),
    *_frames("cook cooks cooking cooked | kochen kocht gekocht", words.SOUPS, words.OF_DRINKS[:1], placed=False),
    *_frames("bake bakes baking baked | backen backt gebacken", words.CAKES, words.OF_FOOD[1:4], placed=False),
    *_frames(
        "order orders ordering ordered | bestellen bestellt bestellt",
        [*words.SOUPS, *words.SALADS, *words.CAKES, *words.JUICES],
        words.OF_FOOD[2:],
    ),
    *_frames(
        "drink drinks drinking drank | trinken trinkt getrunken",
        [*words.DRINKS, *words.DRINKS, *words.JUICES],
        words.OF_DRINKS,
        "mass",
    ),
    *_frames("play plays playing played | spielen spielt gespielt", [words.FOOTBALL, words.CHESS], (), "mass"),
    *_frames(
        """
        repair repairs repairing repaired | reparieren repariert repariert
        push pushes pushing pushed | schieben schiebt geschoben
        """,
        words.VEHICLES,
        _LOOKS,
    ),
    *_frames(
        "repair repairs repairing repaired | reparieren repariert repariert",
        [*words.FURNITURE, *words.SWITCHED],
        _LOOKS,
        placed=False,
    ),
    *_frames("wash washes washing washed | waschen wäscht gewaschen", [*words.CLOTHES, *words.VEHICLES[:3]], _LOOKS),
    *_frames(
        """
        clean cleans cleaning cleaned | putzen putzt geputzt
        """,
        [*words.SHOES, *words.OPENINGS],
        words.COLOURS,
        placed=False,
    ),
    *_frames(
        """
        open opens opening opened | auf|machen macht aufgemacht
        close closes closing closed | zu|machen macht zugemacht
        """,
        words.OPENINGS,
        _LOOKS,
        placed=False,
    ),
    *_frames(
        """
        turn_on turns_on turning_on turned_on | ein|schalten schaltet eingeschaltet
        turn_off turns_off turning_off turned_off | aus|schalten schaltet ausgeschaltet
        """,
        words.SWITCHED,
        words.OF_THINGS[:4],
        placed=False,
    ),
    *_frames(
        """
        put_on puts_on putting_on put_on | an|ziehen zieht angezogen
        take_off takes_off taking_off took_off | aus|ziehen zieht ausgezogen
        """,
        [worn for worn in words.WEAR if not worn.english.endswith(words.HEADWEAR)],
        words.COLOURS,
        placed=False,
    ),
    *_frames("wear wears wearing wore | tragen trägt getragen", words.WEAR, words.COLOURS, placed=False),
    *_frames(
        "borrow borrows borrowing borrowed | aus|leihen leiht ausgeliehen",
        [*words.READABLE[:1], *words.THINGS],
        words.OF_THINGS,
    ),
    *_frames(
        """
        call calls calling called | an|rufen ruft angerufen
        pick_up picks_up picking_up picked_up | ab|holen holt abgeholt
        visit visits visiting visited | besuchen besucht besucht
        greet greets greeting greeted | begrüßen begrüßt begrüßt
        photograph photographs photographing photographed | fotografieren fotografiert fotografiert
        invite invites inviting invited | ein|laden lädt eingeladen
        """,
        [*PERSONS, *words.TRADES],
        words.OF_PEOPLE,
        "persons",
    ),
    *_frames(
        """
        feed feeds feeding fed | füttern füttert gefüttert
        stroke strokes stroking stroked | streicheln streichelt gestreichelt
        watch watches watching watched | beobachten beobachtet beobachtet
        draw draws drawing drew | zeichnen zeichnet gezeichnet
        """,
        words.ANIMALS,
        words.OF_ANIMALS,
        "animals",
    ),
    *_frames(
        """
        need needs needing needed | brauchen braucht gebraucht stative
        have has having had | haben hat gehabt stative
        """,
        [*words.THINGS, *words.KEYS, *words.VEHICLES[:4]],
        words.OF_THINGS,
        placed=False,
    ),
]
# Verbs whose English past is also their participle: "is being washed", "is being sold".
PASSIVE = [
    frame
    for frame in DO
    if frame.kind != "mass"
    and not frame.verb.stative
    and (frame.verb.past.endswith("ed") or frame.verb.past in ("sold", "fed"))
]
TO_PERSON = _frames(  # a dative object, a person
    """
    help helps helping helped | helfen hilft geholfen dative
    thank thanks thanking thanked | danken dankt gedankt dative
    follow follows following followed | folgen folgt gefolgt dative sein
    listen_to listens_to listening_to listened_to | zu|hören hört zugehört dative
    """,
    [*PERSONS, *words.TRADES],
    words.OF_PEOPLE,
    "persons",
)
ABOUT_PERSON = _frames(  # a prepositional object, a person
    """
    talk talks talking talked | sprechen spricht gesprochen about:über
    dance dances dancing danced | tanzen tanzt getanzt with:mit:dative
    wait waits waiting waited | warten wartet gewartet for:auf
    """,
    [*PERSONS, *words.TRADES],
    words.OF_PEOPLE,
    "persons",
)
ABOUT_THING = [
    *_frames("wait waits waiting waited | warten wartet gewartet for:auf", words.TRANSPORT, words.OF_THINGS[:2]),
    *_frames("talk talks talking talked | sprechen spricht gesprochen about:über", words.READABLE, words.OF_TEXTS),
    *_frames("talk talks talking talked | sprechen spricht gesprochen about:über", words.VEHICLES[:4], words.OF_THINGS),
    *_frames(
        "dream dreams dreaming dreamed | träumen träumt geträumt of:von:dative",
        [*words.VEHICLES[:4], *words.CAKES],
        words.OF_THINGS[:5],
    ),
]
GIVE = _frames(  # recipient in the dative, thing in the accusative
    """
    give gives giving gave | geben gibt gegeben
    show shows showing showed | zeigen zeigt gezeigt
    sell sells selling sold | verkaufen verkauft verkauft
    bring brings bringing brought | bringen bringt gebracht
    """,
    [*words.THINGS, *words.FRUIT, *words.KEYS],
    words.OF_THINGS[:4],
)
REST = [  # what people do in a place
    Frame(verb(row))
    for row in """
    work works working worked | arbeiten arbeitet gearbeitet
    sing sings singing sang | singen singt gesungen
    play plays playing played | spielen spielt gespielt
    laugh laughs laughing laughed | lachen lacht gelacht
    dance dances dancing danced | tanzen tanzt getanzt
    shop shops shopping shopped | ein|kaufen kauft eingekauft
    fall_asleep falls_asleep falling_asleep fell_asleep | ein|schlafen schläft eingeschlafen sein
    """.strip().splitlines()
]
ANIMAL_REST = [
    Frame(verb(row))
    for row in """
    sleep sleeps sleeping slept | schlafen schläft geschlafen
    play plays playing played | spielen spielt gespielt
    fall_asleep falls_asleep falling_asleep fell_asleep | ein|schlafen schläft eingeschlafen sein
    """.strip().splitlines()
]
POSTURE = [
    Frame(verb(row))
    for row in """
    sit sits sitting sat | sitzen sitzt gesessen
    sleep sleeps sleeping slept | schlafen schläft geschlafen
    stand stands standing stood | stehen steht gestanden
    """.strip().splitlines()
]
GO = [
    Frame(verb(row))
    for row in """
    walk walks walking walked | gehen geht gegangen sein
    run runs running ran | laufen läuft gelaufen sein
    drive drives driving drove | fahren fährt gefahren sein
    come comes coming came | kommen kommt gekommen sein
    """.strip().splitlines()
]
JUMP = [
    Frame(verb(row))
    for row in """
    climb climbs climbing climbed | klettern klettert geklettert sein
    jump jumps jumping jumped | springen springt gesprungen sein
    """.strip().splitlines()
]
PUT = Frame(
    verb("put puts putting put | legen legt gelegt"),
    (*words.READABLE[:4], *words.KEYS, *words.CLOTHES),
    tuple(words.OF_THINGS[:2]),
)
TRAVEL = [
    Frame(verb(row))
    for row in """
    leave leaves leaving left | ab|fahren fährt abgefahren sein
    arrive arrives arriving arrived | an|kommen kommt angekommen sein
    """.strip().splitlines()
]
SAY = [
    verb("say says saying said | sagen sagt gesagt"),
    verb("believe believes believing believed | glauben glaubt geglaubt"),
    verb("know knows knowing knew | wissen weiß gewusst"),
    verb("see sees seeing saw | sehen sieht gesehen"),
    verb("hope hopes hoping hoped | hoffen hofft gehofft"),
]
COST = verb("cost costs costing cost | kosten kostet gekostet stative")
BE = verb("be is being was | sein ist gewesen sein stative")


def _named(*bases: str) -> list[Frame]:
    return [frame for frame in (*DO, *REST, *POSTURE) if frame.verb.base in bases]


# What people do when they feel so.
MOODS = [
    (feeling, _named(*bases))
    for feeling, bases in zip(
        words.MOODS,
        (("sleep", "sit", "fall asleep"), ("eat", "order", "cook", "bake"), ("drink",), ("sing", "dance", "laugh", "invite"),
         ("call", "visit"), ("call", "drink", "sit"), ("throw away", "close")),
        strict=True,
    )
]  # fmt: skip
