"""What the errors of file operations mean in a cache, and what to do about them."""

from __future__ import annotations

import errno

from overmind.users import within


def meaning(e: OSError, root: str, is_mount: bool) -> str:
    """An error of a file of the cache at root, in words for a user."""
    advice = {
        errno.ENOTCONN: f'the daemon is gone; start it again: overmind-fs mount {root}',
        errno.ECONNABORTED: f'the daemon is gone; start it again: overmind-fs mount {root}',
        errno.ENOSPC: 'no room in the cache; see overmind-fs status, and --max-bytes of overmind-fs mount',
        errno.EACCES: 'no permission; see the owner and the mode of it, and of the folders above it; a mount of '
        'another user is for others only with --allow-other',
        errno.EFBIG: 'a file of it is larger than this process or the daemon may write: ulimit -f unlimited',
        errno.EDQUOT: 'this user has too many fills under way',
        errno.EPERM: f'not permitted; this entry, or all of {root}, belongs to another user{within()}',
        errno.EINVAL: 'the cache refuses it; the log of overmind-fs says why',
        errno.ETXTBSY: 'it is still open for writing, here or in a child process',
        errno.EBUSY: 'it is still mapped for writing, here or in a child process',
    }
    if not is_mount:
        advice[errno.ENOSPC] = f'no room in the cache: the disk is full; overmind gc --max-bytes SIZE {root}'
    return advice.get(e.errno or 0, f'{e.strerror or e}')
