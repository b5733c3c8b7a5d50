"""ProgramPackages: uploads the local folders and modules of a runtime_env to the service, which may not read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.app.client_api.remote.service_client import ServiceClient
from ray_multicluster_scheduler.common.blob_names import digest_of, package_uri
from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import (
    PackageCache,
    resolve_runtime_env,
)

SEEN_TTL_S = 5.0
"""How long a packed folder is not checked for changes: many items of a program use the same ones."""
_NAMES = ("working_dir", "py_modules")


class ProgramPackages:
    """Packs and uploads each package once. Runs on one loop."""

    name = "the service"

    def __init__(self, client: ServiceClient) -> None:
        self._client, self._cache = client, PackageCache()
        self._digests: dict[str, str] = {}
        self._given: set[str] = set()
        self._resolved: dict[str, tuple[float, dict[str, Any]]] = {}

    async def resolved(self, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
        """Return the environment with package URIs instead of local paths. Raises TaskSubmissionError."""
        if not any(runtime_env.get(name) for name in _NAMES):
            return dict(runtime_env)
        key = json.dumps(runtime_env, sort_keys=True, default=str)
        now = asyncio.get_running_loop().time()
        known = self._resolved.get(key)
        if known is not None and now - known[0] < SEEN_TTL_S:
            return known[1]
        env = await resolve_runtime_env(runtime_env, None, self, self._cache)
        for name in _NAMES:
            value = env.get(name)
            if isinstance(value, str):
                env[name] = self._named(value)
            elif value:
                env[name] = [self._named(one) for one in value]
        self._resolved = {one: kept for one, kept in self._resolved.items() if now - kept[0] < SEEN_TTL_S}
        self._resolved[key] = now, env
        return env

    def lost(self, digests: Iterable[str]) -> bool:
        """Forget uploaded packages that the service lost. True if there were any: they must be uploaded again."""
        gone = self._given.intersection(digests)
        if gone:
            self._digests = {uri: digest for uri, digest in self._digests.items() if digest not in gone}
            self._resolved.clear()
            self._cache.forget_seen()
        return bool(gone)

    async def package_exists(self, uri: str) -> bool:
        """See PackageStore."""
        return uri in self._digests

    async def upload_package(self, uri: str, source: Path | bytes) -> None:
        """See PackageStore."""
        data = source if isinstance(source, bytes) else await asyncio.to_thread(source.read_bytes)
        digest = await asyncio.to_thread(digest_of, data)
        try:
            await self._client.upload(digest, data)
        except TaskSubmissionError as error:
            raise TaskSubmissionError(
                f"A package of the runtime_env cannot be uploaded to the service: {error.message}",
                next_step="leave data out with `excludes` in runtime_env or a .gitignore",
            ) from error
        self._digests[uri] = digest
        self._given.add(digest)

    async def close(self) -> None:
        await asyncio.to_thread(self._cache.close)

    def _named(self, uri: str) -> str:
        digest = self._digests.get(uri)
        return uri if digest is None else package_uri(digest, uri.removeprefix("gcs://"))
