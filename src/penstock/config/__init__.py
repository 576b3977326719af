"""The pipeline file: YAML to frozen models, with every mistake found and placed.

`parse_columns`, `parse_type` and `arrow_to_ddl` are in `penstock.config.arrow_types`, the JSON Schema and the
template in `penstock.config.jsonschema` and `penstock.config.template`: not everyone pays for importing them.
"""

from penstock.config.ddl import ColumnsError
from penstock.config.decode import (
    AvroDecodeConfig,
    DecodeConfig,
    JsonDecodeConfig,
    ProtobufDecodeConfig,
    RawDecodeConfig,
    RegistryConfig,
    TextDecodeConfig,
)
from penstock.config.durations import show_duration
from penstock.config.expressions import ExpressionError, read_expression
from penstock.config.fields import reveal
from penstock.config.load import load
from penstock.config.pipeline import PipelineConfig, QuarantineConfig, TriggerConfig
from penstock.config.problems import InvalidDefinition, Positions, Problem
from penstock.config.sinks import (
    DeltaSinkConfig,
    IcebergCatalogConfig,
    IcebergSinkConfig,
    KafkaSinkConfig,
    ParquetSinkConfig,
    PostgresSinkConfig,
    SinkConfig,
    TopicExpression,
    merges,
)
from penstock.config.source import KafkaSourceConfig
from penstock.config.stages import StageColumns, columns_after
from penstock.config.transforms import (
    CastConfig,
    DedupeConfig,
    DeriveConfig,
    DropConfig,
    RenameConfig,
    SqlConfig,
    TransformConfig,
    WhereConfig,
)

__all__ = [
    "AvroDecodeConfig",
    "CastConfig",
    "ColumnsError",
    "DecodeConfig",
    "DedupeConfig",
    "DeltaSinkConfig",
    "DeriveConfig",
    "DropConfig",
    "ExpressionError",
    "IcebergCatalogConfig",
    "IcebergSinkConfig",
    "InvalidDefinition",
    "JsonDecodeConfig",
    "KafkaSinkConfig",
    "KafkaSourceConfig",
    "ParquetSinkConfig",
    "PipelineConfig",
    "Positions",
    "PostgresSinkConfig",
    "Problem",
    "ProtobufDecodeConfig",
    "QuarantineConfig",
    "RawDecodeConfig",
    "RegistryConfig",
    "RenameConfig",
    "SinkConfig",
    "SqlConfig",
    "StageColumns",
    "TextDecodeConfig",
    "TopicExpression",
    "TransformConfig",
    "TriggerConfig",
    "WhereConfig",
    "columns_after",
    "load",
    "merges",
    "read_expression",
    "reveal",
    "show_duration",
]
