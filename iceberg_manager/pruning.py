"""What metadata alone says about a condition: which manifests and files hold no matching row, and which hold no other."""

from collections.abc import Callable

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluator,
    bind,
    expression_evaluator,
    extract_field_ids,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record


class Pruning:
    """One condition (see ``conditions``) against a table's manifests and files."""

    def __init__(self, table: Table, schema: Schema, where: BooleanExpression) -> None:
        self._specs, self._schema, self._where = table.specs(), schema, where
        self._inclusive = _InclusiveMetricsEvaluator(schema, where)
        self._strict = _StrictMetricsEvaluator(schema, where)
        inside = extract_field_ids(bind(schema, where, case_sensitive=True)) - {item.field_id for item in schema.fields}
        self._plain = not inside  # what is inside a struct may be missing with it, which its statistics do not tell
        self._partitions: dict[int, tuple[Callable[[ManifestFile], bool], Callable[[Record], bool]]] = {}

    def may_hold(self, manifest: ManifestFile) -> bool:
        """Whether some file of the manifest may hold a matching row, by its summary of partitions."""
        return self._partition(manifest.partition_spec_id)[0](manifest)

    def in_partition(self, file: DataFile, spec_id: int) -> bool:
        """Whether the file's partition may hold a matching row."""
        return self._partition(spec_id)[1](file.partition)

    def by_statistics(self, file: DataFile) -> bool:
        """Whether the file's counts and bounds leave room for a matching row."""
        return self._inclusive.eval(file)

    def whole(self, file: DataFile) -> bool:
        """Whether every row of the file matches for sure."""
        return self._plain and self._strict.eval(file)

    def _partition(self, spec_id: int) -> tuple[Callable[[ManifestFile], bool], Callable[[Record], bool]]:
        """What the condition says about partitions of one layout; bound once, for there may be many manifests."""
        if spec_id not in self._partitions:
            spec, schema = self._specs[spec_id], self._schema
            projected = inclusive_projection(schema, spec, True)(self._where)
            partition = Schema(*spec.partition_type(schema).fields)
            by_summary = manifest_evaluator(spec, schema, projected, True)
            self._partitions[spec_id] = (by_summary, expression_evaluator(partition, projected, True))
        return self._partitions[spec_id]
