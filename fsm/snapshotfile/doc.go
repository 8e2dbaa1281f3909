// Package snapshotfile is the format of the files that `bivouac operator snapshot save` and the
// backups write. A file holds the whole state at one log index, the identity of the cluster, and
// what is needed to verify that it is complete. It holds references to secrets, never their values.
//
// A file is a plain tar with three kinds of entries, in this order:
//
//	manifest.json    a Manifest: format, cluster, index, versions, the parts
//	parts/<sha256>   each part, named by the SHA-256 of the entry's bytes; format 1
//	                 has the part "state", an fsm snapshot compressed with gzip, and
//	                 may have "events" behind it (cluster/event_file.go)
//	SHA256SUMS       the SHA-256 of every entry before it
//
// `tar xf FILE && sha256sum -c SHA256SUMS` checks a file without Bivouac. The manifest determines
// the length of the file, so a truncated file is refused, even one that ends between two entries.
//
// The manifest is the first entry, so that a reader can decide before it reads the state. It holds
// sizes and hashes, so Pack compresses the state into a scratch file first. Pack also releases the
// state early and gives the length before the first byte is sent, however slow the receiver is.
//
// The package opens no files: it reads from an io.Reader and writes to an io.Writer.
package snapshotfile
