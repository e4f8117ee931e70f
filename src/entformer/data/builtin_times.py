"""Built-in corpus: when things happen, in both languages. In: nothing. Out: lists of times by the tense they go with.

The lists share no entry where English could not tell the tenses apart ("they read it" is a habit or the past), so that a
sentence has one German translation.
"""

from entformer.data.builtin_meaning import NUMBERS, Words

_HOURS = {"one": "eins", **NUMBERS}
_NEXT = dict(zip(_HOURS, [*list(_HOURS.values())[1:], "eins"], strict=True))  # German counts to the hour that comes
_DAYS = {
    "Monday": "Montag", "Tuesday": "Dienstag", "Wednesday": "Mittwoch", "Thursday": "Donnerstag", "Friday": "Freitag",
    "Saturday": "Samstag", "Sunday": "Sonntag",
}  # fmt: skip

CLOCK = [
    *(Words(f"at {hour} o'clock", f"um {german if german != 'eins' else 'ein'} Uhr") for hour, german in _HOURS.items()),
    *(Words(f"at half past {hour}", f"um halb {german}") for hour, german in _NEXT.items()),
    *(Words(f"at a quarter past {hour}", f"um Viertel nach {german}") for hour, german in _HOURS.items()),
    *(Words(f"at a quarter to {hour}", f"um Viertel vor {german}") for hour, german in _HOURS.items()),
    *(Words(f"at {hour}:{minute:02}", f"um {hour}:{minute:02} Uhr") for hour in range(6, 24) for minute in range(5, 60, 5)),
]
NOW = [Words("today", "heute"), Words("this morning", "heute Morgen"), Words("this evening", "heute Abend")]
HABIT = [
    Words("every day", "jeden Tag"),
    Words("every morning", "jeden Morgen"),
    Words("every evening", "jeden Abend"),
    Words("every week", "jede Woche"),
    *(Words(f"on {english}s", f"{german.lower()}s") for english, german in _DAYS.items()),
    *(Words(f"every {english}", f"jeden {german}") for english, german in _DAYS.items()),
]
PAST = [
    Words("yesterday", "gestern"),
    Words("yesterday evening", "gestern Abend"),
    Words("last week", "letzte Woche"),
    Words("last year", "letztes Jahr"),
    Words("last night", "letzte Nacht"),
    *(Words(f"{english} hours ago", f"vor {german} Stunden") for english, german in NUMBERS.items()),
    *(Words(f"{english} days ago", f"vor {german} Tagen") for english, german in NUMBERS.items()),
    *(Words(f"last {english}", f"letzten {german}") for english, german in _DAYS.items()),
]
SOON = [Words(f"in {english} minutes", f"in {german} Minuten") for english, german in NUMBERS.items()]
FUTURE = [
    Words("tomorrow", "morgen"),
    Words("tomorrow morning", "morgen früh"),
    Words("tomorrow evening", "morgen Abend"),
    Words("next week", "nächste Woche"),
    *(Words(f"on {english}", f"am {german}") for english, german in _DAYS.items()),
    *(Words(f"next {english}", f"nächsten {german}") for english, german in _DAYS.items()),
]
