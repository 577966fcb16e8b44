"""What a site holds, seen at the site and offline: its own file against the terms it has a copy of."""

from pathlib import Path

from fedbnn.data.check import DataCheck, columns_of, contents, holding, remarks
from fedbnn.data.targets import target_texts
from fedbnn.deployment.alignment import read_alignment
from fedbnn.deployment.site import index_of, origin_of, site_records
from fedbnn.deployment.site_file import read_site
from fedbnn.deployment.site_table import read_columns, reader_of
from fedbnn.deployment.terms import read_terms


def check_site(path: Path) -> DataCheck:
    """The check of one site.toml; nothing is written, and nobody is called."""
    site = read_site(path)
    terms = read_terms(site.terms, site.methods)
    index_of(site.name, terms)
    alignment = read_alignment(site.alignment, terms)
    promised = terms.chosen().protects(terms.privacy) is not None
    train, test = site_records(site.data, terms, promised)
    labels = target_texts(train.y, terms.class_names)
    cells, notes = None, []
    if terms.coding is not None and site.data.source != "npz":
        origin = origin_of(site.data)
        cells = reader_of(site.data, terms.coding).read(site.data.path, origin, site.data.source)
        notes = read_columns(cells, site.data, terms.coding, origin).counts()
        cells = cells.only([name for name in cells.columns if name != site.data.target])
    held = holding(
        site.name,
        train.x,
        labels,
        terms.class_names,
        cells,
        contents(alignment.raw),
        0 if test is None else len(test.y),
    )
    columns = () if cells is None else columns_of(cells, terms.coding)
    return DataCheck(
        str(site.data.path),
        len(alignment.raw),
        train.x[0].size,
        (held,),
        columns,
        (*notes, *remarks((held,), columns)),
    )
