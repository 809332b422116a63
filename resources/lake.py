"""The lake as a Dagster resource: its settings and its catalog, each opened on first use and not before."""

import dagster as dg
from pydantic import PrivateAttr
from pyiceberg.catalog import Catalog

from iceberg_manager.catalog import open_catalog
from iceberg_manager.settings import LakeSettings, load_settings


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """``path`` is a lake.yaml or a lake's folder; without it the usual search applies (see ``settings.py``)."""

    path: str | None = None
    _settings: LakeSettings | None = PrivateAttr(default=None)
    _catalog: Catalog | None = PrivateAttr(default=None)

    @property
    def settings(self) -> LakeSettings:
        if self._settings is None:
            self._settings = load_settings(self.path)
        return self._settings

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.settings)
        return self._catalog
