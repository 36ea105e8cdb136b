// Package schema decodes and checks manifests, the FlatBuffers (manifest.fbs) that say what the arenas of a cached
// pipeline hold.
//
// The Go runtime of FlatBuffers ships no verifier, and a manifest is written by whoever filled the cache. Decode
// therefore trusts nothing: it bounds every count by the size of the buffer, bounds what it allocates by a fixed
// multiple of it, turns every out-of-range access into an error, and returns plain Go values that no longer refer
// to the buffer. What the values say is checked separately, by Manifest.Validate, because it needs the files.
package schema
