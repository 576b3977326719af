"""The pipeline file: YAML to frozen models, with every mistake found and placed.

`parse_columns`, `parse_type` and `arrow_to_ddl` are in `penstock.config.arrow_types`, the JSON Schema and the
template in `penstock.config.jsonschema` and `penstock.config.template`: not everyone pays for importing them.
"""

from penstock.config.ddl import ColumnsError
from penstock.config.decode import (
    AvroDecodeConfig,
    AvroKeyConfig,
    ByTopicDecodeConfig,
    DecodeConfig,
    FormatConfig,
    JsonDecodeConfig,
    JsonKeyConfig,
    KeyDecodeConfig,
    ProtobufDecodeConfig,
    ProtobufKeyConfig,
    RawDecodeConfig,
    RawKeyConfig,
    RegisteredConfig,
    TextDecodeConfig,
    TextKeyConfig,
)
from penstock.config.durations import show_duration
from penstock.config.expressions import ExpressionError, read_expression
from penstock.config.fields import reveal
from penstock.config.flows import Flow, flows, only_topic
from penstock.config.load import load
from penstock.config.pipeline import PipelineConfig, QuarantineConfig, RouteConfig, TriggerConfig
from penstock.config.problems import InvalidDefinition, Positions, Problem
from penstock.config.registry import RegistryConfig
from penstock.config.sinks import (
    DeltaSinkConfig,
    EncodeConfig,
    IcebergCatalogConfig,
    IcebergSinkConfig,
    KafkaSinkConfig,
    KeyEncodeConfig,
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
    "AvroKeyConfig",
    "ByTopicDecodeConfig",
    "CastConfig",
    "ColumnsError",
    "DecodeConfig",
    "DedupeConfig",
    "DeltaSinkConfig",
    "DeriveConfig",
    "DropConfig",
    "EncodeConfig",
    "ExpressionError",
    "Flow",
    "FormatConfig",
    "IcebergCatalogConfig",
    "IcebergSinkConfig",
    "InvalidDefinition",
    "JsonDecodeConfig",
    "JsonKeyConfig",
    "KafkaSinkConfig",
    "KafkaSourceConfig",
    "KeyDecodeConfig",
    "KeyEncodeConfig",
    "ParquetSinkConfig",
    "PipelineConfig",
    "Positions",
    "PostgresSinkConfig",
    "Problem",
    "ProtobufDecodeConfig",
    "ProtobufKeyConfig",
    "QuarantineConfig",
    "RawDecodeConfig",
    "RawKeyConfig",
    "RegisteredConfig",
    "RegistryConfig",
    "RenameConfig",
    "RouteConfig",
    "SinkConfig",
    "SqlConfig",
    "StageColumns",
    "TextDecodeConfig",
    "TextKeyConfig",
    "TopicExpression",
    "TransformConfig",
    "TriggerConfig",
    "WhereConfig",
    "columns_after",
    "flows",
    "load",
    "merges",
    "only_topic",
    "read_expression",
    "reveal",
    "show_duration",
]
