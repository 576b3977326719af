"""The pipeline file: YAML to frozen models, with every mistake found and placed.

`parse_columns`, `parse_type` and `arrow_to_ddl` are in `penstock.config.arrow_types`, the JSON Schema and the
template in `penstock.config.jsonschema` and `penstock.config.template`: not everyone pays for importing them.
"""

from penstock.config.alerts import AlertRuleConfig, AlertsConfig, WebhookConfig
from penstock.config.cluster import ClusterConfig
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
from penstock.config.everyday import (
    EnrichConfig,
    ExpectConfig,
    ExplodeConfig,
    FlattenConfig,
    MapArrowConfig,
    MaskConfig,
    MaskSettings,
    PythonConfig,
)
from penstock.config.expressions import ExpressionError, read_expression
from penstock.config.fields import reveal
from penstock.config.flow import FlowConfig
from penstock.config.flows import Flow, Side, flows, only_topic
from penstock.config.load import load
from penstock.config.monitoring import MetricsConfig, OtelConfig
from penstock.config.pipeline import PipelineConfig, QuarantineConfig, RouteConfig, TriggerConfig
from penstock.config.problems import InvalidDefinition, Positions, Problem
from penstock.config.registry import RegistryConfig
from penstock.config.security import SecurityConfig
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
from penstock.config.stateful import JoinConfig, StatefulConfig, WatermarkConfig, WindowConfig
from penstock.config.storage import StorageConfig
from penstock.config.tables import (
    CsvTableConfig,
    DeltaTableConfig,
    IcebergTableConfig,
    JsonTableConfig,
    LookupConfig,
    ParquetTableConfig,
    PostgresTableConfig,
)
from penstock.config.transforms import (
    CastConfig,
    DedupeConfig,
    DeriveConfig,
    DropConfig,
    RenameConfig,
    SqlConfig,
    TransformConfig,
    WhereConfig,
    remembers,
)
from penstock.config.upkeep import CheckpointBackupConfig, MaintenanceConfig

__all__ = [
    "AlertRuleConfig",
    "AlertsConfig",
    "AvroDecodeConfig",
    "AvroKeyConfig",
    "ByTopicDecodeConfig",
    "CastConfig",
    "CheckpointBackupConfig",
    "ClusterConfig",
    "ColumnsError",
    "CsvTableConfig",
    "DecodeConfig",
    "DedupeConfig",
    "DeltaSinkConfig",
    "DeltaTableConfig",
    "DeriveConfig",
    "DropConfig",
    "EncodeConfig",
    "EnrichConfig",
    "ExpectConfig",
    "ExplodeConfig",
    "ExpressionError",
    "FlattenConfig",
    "Flow",
    "FlowConfig",
    "FormatConfig",
    "IcebergCatalogConfig",
    "IcebergSinkConfig",
    "IcebergTableConfig",
    "InvalidDefinition",
    "JoinConfig",
    "JsonDecodeConfig",
    "JsonKeyConfig",
    "JsonTableConfig",
    "KafkaSinkConfig",
    "KafkaSourceConfig",
    "KeyDecodeConfig",
    "KeyEncodeConfig",
    "LookupConfig",
    "MaintenanceConfig",
    "MapArrowConfig",
    "MaskConfig",
    "MaskSettings",
    "MetricsConfig",
    "OtelConfig",
    "ParquetSinkConfig",
    "ParquetTableConfig",
    "PipelineConfig",
    "Positions",
    "PostgresSinkConfig",
    "PostgresTableConfig",
    "Problem",
    "ProtobufDecodeConfig",
    "ProtobufKeyConfig",
    "PythonConfig",
    "QuarantineConfig",
    "RawDecodeConfig",
    "RawKeyConfig",
    "RegisteredConfig",
    "RegistryConfig",
    "RenameConfig",
    "RouteConfig",
    "SecurityConfig",
    "Side",
    "SinkConfig",
    "SqlConfig",
    "StageColumns",
    "StatefulConfig",
    "StorageConfig",
    "TextDecodeConfig",
    "TextKeyConfig",
    "TopicExpression",
    "TransformConfig",
    "TriggerConfig",
    "WatermarkConfig",
    "WebhookConfig",
    "WhereConfig",
    "WindowConfig",
    "columns_after",
    "flows",
    "load",
    "merges",
    "only_topic",
    "read_expression",
    "remembers",
    "reveal",
    "show_duration",
]
