"""Names of `entformer.files`."""

from entformer.files import (
    file_sha256,
    plain,
    read_json,
    remove_temporary,
    sync_file,
    wrap_os_errors,
    write_bytes,
    write_json,
    write_text,
)
from entformer.files import sync_directory as sync_folder

__all__ = [
    "file_sha256",
    "plain",
    "read_json",
    "remove_temporary",
    "sync_file",
    "sync_folder",
    "wrap_os_errors",
    "write_bytes",
    "write_json",
    "write_text",
]
