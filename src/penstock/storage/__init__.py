"""Where tables, checkpoints and backups are: local paths and object stores, reached by one value for all clients."""

from penstock.storage.objects import ChangedError, ObjectFileSystem
from penstock.storage.storage import Storage, bucket_of, is_local, is_object_uri, local_path

__all__ = ["ChangedError", "ObjectFileSystem", "Storage", "bucket_of", "is_local", "is_object_uri", "local_path"]
