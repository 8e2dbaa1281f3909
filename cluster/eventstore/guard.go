package eventstore

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardedFS is a file system whose first failed write is its last operation: it stops the store, and the
// goroutine that wrote never returns. The library would try it again for ever, write behind a record that
// may be half there, or end the process.
type guardedFS struct {
	vfs.FS
	s *Store
}

// guard returns if err is nil.
func (g guardedFS) guard(err error) {
	if err == nil {
		return
	}
	_ = g.s.fail("writing events", err)
	select {} // the process ends
}

func (g guardedFS) file(f vfs.File, err error) (vfs.File, error) {
	g.guard(err)
	return &guardedFile{f, g}, nil
}

// Create implements vfs.FS.
func (g guardedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return g.file(g.FS.Create(name, category))
}

// OpenReadWrite implements vfs.FS.
func (g guardedFS) OpenReadWrite(
	name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption,
) (vfs.File, error) {
	return g.file(g.FS.OpenReadWrite(name, category, opts...))
}

// ReuseForWrite implements vfs.FS.
func (g guardedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return g.file(g.FS.ReuseForWrite(oldname, newname, category))
}

// OpenDir implements vfs.FS. A directory is synced.
func (g guardedFS) OpenDir(name string) (vfs.File, error) { return g.file(g.FS.OpenDir(name)) }

// Link implements vfs.FS.
func (g guardedFS) Link(oldname, newname string) error {
	g.guard(g.FS.Link(oldname, newname))
	return nil
}

// Rename implements vfs.FS.
func (g guardedFS) Rename(oldname, newname string) error {
	g.guard(g.FS.Rename(oldname, newname))
	return nil
}

// MkdirAll implements vfs.FS.
func (g guardedFS) MkdirAll(dir string, perm os.FileMode) error {
	g.guard(g.FS.MkdirAll(dir, perm))
	return nil
}

// Unwrap implements vfs.FS.
func (g guardedFS) Unwrap() vfs.FS { return g.FS }

// guardedFile is a file of guardedFS.
type guardedFile struct {
	vfs.File
	fs guardedFS
}

// Write implements vfs.File.
func (f *guardedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.fs.guard(err)
	return n, nil
}

// WriteAt implements vfs.File.
func (f *guardedFile) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p, at)
	f.fs.guard(err)
	return n, nil
}

// Sync implements vfs.File.
func (f *guardedFile) Sync() error {
	f.fs.guard(f.File.Sync())
	return nil
}

// SyncData implements vfs.File.
func (f *guardedFile) SyncData() error {
	f.fs.guard(f.File.SyncData())
	return nil
}

// SyncTo implements vfs.File.
func (f *guardedFile) SyncTo(length int64) (bool, error) {
	whole, err := f.File.SyncTo(length)
	f.fs.guard(err)
	return whole, nil
}
