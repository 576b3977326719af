"""How object stores are reached: one set of credentials for every table, checkpoint and backup of the file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from penstock.config.fields import Section, Settings, Text, wrong


def _check_endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise wrong("the address of a store begins with http:// or https://")
    return url.rstrip("/")


class StorageConfig(Section):
    """How stores are reached, for every `s3://`, `gs://`, `abfss://` and `hdfs://` place of the file."""

    endpoint: Annotated[Text, AfterValidator(_check_endpoint)] | None = Field(
        default=None,
        description="The address of a server that speaks like S3. Left out, `AWS_ENDPOINT_URL`, or AWS itself.",
        examples=["http://localhost:9000"],
    )
    region: Text | None = Field(default=None, description="The region of the buckets. Left out, `AWS_REGION`.")
    access_key: SecretStr | None = Field(
        default=None,
        description="The id of the key, by reference. Left out, `AWS_ACCESS_KEY_ID`, or the role of the machine.",
    )
    secret_key: SecretStr | None = Field(default=None, description="The key itself, by reference.")
    session_token: SecretStr | None = Field(
        default=None, description="The token of a key that is good for a time only, by reference."
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is in the path of a request and not in its host name. Left out, where "
        "`endpoint` is set.",
    )
    options: Settings = Field(
        default_factory=dict,
        description="Any other option of the stores' client, as delta-rs names it: `google_service_account`, "
        "`azure_storage_account_name`, `azure_storage_account_key`, ...; for HDFS Hadoop's settings: "
        "`dfs.nameservices`, ...",
    )
