"""On whose account a request is served: what the scheduler is told of keys and users.

Opaque names only: a key's digest, which `ApiKeys` made, and a digest of what the caller calls its
user, which may be an address. A user counts only within its key, so nobody gets more by inventing
users.
"""

import hashlib

USER_BYTES = 16


def tenant_of(key: str, user: str | None, shared_by: str) -> tuple[str, ...]:
    """The path from key to user, as far as the server is `shared_by` them (off, keys or users).
    `key` is the identity of the API key, empty where keys do not divide."""
    match shared_by:
        case "users":
            return (key, _digest(user) if user else "")
        case "keys":
            return (key,)
    return ()


def _digest(user: str) -> str:
    return hashlib.blake2b(user.encode(), digest_size=USER_BYTES).hexdigest()
