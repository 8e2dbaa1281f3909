// Package snapshotfile is the format of the files that `bivouac operator snapshot
// save` and the backups write: the whole state at one log index, with what is
// needed to know whose it is and whether all of it is there. A file holds
// references to secrets, never their values.
//
// A file is a plain tar with three kinds of entries, in this order:
//
//	manifest.json    a Manifest: format, cluster, index, versions, the parts
//	parts/<sha256>   each part, named by the SHA-256 of the entry's bytes; format 1
//	                 has the part "state", an fsm snapshot compressed with gzip
//	SHA256SUMS       the SHA-256 of every entry before it
//
// `tar xf FILE && sha256sum -c SHA256SUMS` checks a file without Bivouac. The
// length of a file follows from its manifest, so a file that was cut off, at an
// entry's end too, is refused.
//
// The manifest is the first entry, so that a reader knows what it gets before it
// reads the state. It holds sizes and hashes, so the state is compressed into a
// scratch file first (Pack). That also frees the picture of the state and tells
// the length before the first byte is sent, however slow the receiver is.
//
// The package opens no files: it reads from an io.Reader and writes to an
// io.Writer.
package snapshotfile
