"""Does a column look as if it names people? By its own name, and by whether its values repeat."""

import re
from collections.abc import Sequence

NAMES = re.compile(
    r"(^|[^a-z])(id|ids|uuid|mrn|pid|ssn|ahv|avs|nhs|name|surname|firstname|lastname|vorname|nachname|email|mail|phone|tel|"
    r"telefon|mobile|address|adresse|strasse|street|zip|plz|postcode|birth|birthday|birthdate|dob|geburtsdatum|geburtstag|"
    r"passport|insurance|iban)([^a-z]|$)"
)
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
FEWEST = 5  # values of which it means something that they differ


def named(name: str) -> bool:
    """Whether the column's name says so: patient_id, PatientID, date of birth, E-Mail."""
    words = CAMEL.sub("_", name).lower().replace("e-mail", "email").replace("ß", "ss")
    return NAMES.search(words) is not None


def distinct(values: Sequence[str | None]) -> float:
    """The share of different values among those that are there; 0 where they are too few to tell."""
    there = [value for value in values if value is not None]
    return len(set(there)) / len(there) if len(there) >= FEWEST else 0.0
