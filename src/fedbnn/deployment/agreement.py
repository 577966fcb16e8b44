"""Does a site take part under these terms? Only under those it has a copy of, and never beyond its own cap."""

from fedbnn.base.errors import UserError
from fedbnn.deployment.site import index_of
from fedbnn.deployment.site_file import SiteSettings
from fedbnn.deployment.terms import Terms
from fedbnn.methods import METHODS
from fedbnn.runs.folder import changed

NAMED = 3  # differences that an error lists


class Refused(UserError):
    """What a server asks for is not what was agreed on. The text goes to the server: it tells nothing of records."""


def check_terms(asked: Terms, agreed: Terms, site: SiteSettings | None = None) -> None:
    """Raise Refused where the terms asked for are not those agreed on, or are beyond what the site allows."""
    found = [f"{field} = {new!r}, agreed was {old!r}" for field, old, new in changed(agreed.to_dict(), asked.to_dict())]
    if found:
        more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise Refused(f"refused: the server asks for {'; '.join(found[:NAMED])}{more}")
    if site is not None:
        index_of(site.name, asked)
        if asked.method not in METHODS and asked.method not in site.methods:
            raise Refused(
                f"refused: the terms ask for method = '{asked.method}', which is not one of fedbnn's, and this site "
                f"does not allow it; only who trusts its code may add methods = ['{asked.method}'] to site.toml"
            )
        try:
            asked.chosen().check_deployed()
        except UserError as error:
            raise Refused(f"refused: {error}") from None
        _check_sharing(asked, site)
        _check_cap(asked, site)


def _check_sharing(terms: Terms, site: SiteSettings) -> None:
    promise = terms.chosen().protects(terms.privacy)
    if site.share_metrics == "yes" and promise is not None:
        raise UserError(
            f"share_metrics = 'yes': the terms promise epsilon {promise.budget.epsilon:g} for each {promise.unit}, and "
            "scores and diagnostics, which have no noise, would break it; 'auto' and 'no' keep them at home"
        )


def _check_cap(terms: Terms, site: SiteSettings) -> None:
    cap, promise = site.privacy, terms.chosen().protects(terms.privacy)
    if cap is None:
        return
    if promise is None or promise.unit != "record":
        raise Refused(
            f"refused: the terms promise nothing about records (method '{terms.method}', privacy.mechanism = "
            f"'{terms.privacy.mechanism}'), while this site has a [privacy] cap; only who needs no protection may "
            "take the table out"
        )
    for field in ("epsilon", "delta"):
        asked, most = getattr(promise.budget, field), getattr(cap, field)
        if asked > most:
            raise Refused(f"refused: the terms ask for {field} = {asked:g}, this site's cap is {most:g}")
