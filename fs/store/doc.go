// Package store keeps cached pipelines in memfds. It knows entries, staging, leases, the byte budget and
// eviction, and nothing of FUSE.
//
// An Entry starts as staging (Begin), gets files (CreateArena, CreateBlob), and is published whole by Commit; after
// that nothing in it changes until it leaves. It leaves by eviction (Evict, or to make room), by replacement (a Commit
// of the same id), or by Unlink of a file in it, which leaves a tombstone: the names without the bytes, so that
// "rm -r" can walk on.
//
// The memory of a File lives until the entry has let go of it and the last Handle is released; in between its bytes
// count as draining. An open handle on an arena of a published entry is a lease: an entry with a lease is never
// evicted to make room.
//
// A manifest or structure.pkl of at most 64 KiB gives its memfd up when it is published: the pack, one memfd for all of
// them, has a copy, so that an entry costs a descriptor for each arena and no more. Not where somebody reads it just then,
// nor in an entry without arenas. The pack is not sealed. It is never
// handed out, and the store only reads what is in use of it; others get a sealed copy (Borrow, Keeper).
//
// Arenas of several entries may have one memory (Link). Its bytes count once, as cached while an entry has them, and stay
// until the last file on it has gone.
//
// Another daemon can take the entries over: Freeze, Records and Borrow here, NewAdoption and Adopt there, then Supersede
// here. A Keeper is told what should outlive a crash.
//
// One mutex guards all of it. Slow work (allocating, waiting for writers, sealing) runs outside the mutex on files
// that it holds a reference to.
package store
