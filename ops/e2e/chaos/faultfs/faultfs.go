// Package faultfs is a file system in user space (FUSE) that mirrors a folder and fails on
// demand like a disk: writes and fsyncs return an errno or hang. The processes that use it are
// unchanged; their kernel returns the errors.
package faultfs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Operation is one kind of access to a file.
type Operation string

// The operations that can fail.
const (
	Write Operation = "write"
	Sync  Operation = "fsync"
	Read  Operation = "read"
)

// Fault says which operations fail, and how.
type Fault struct {
	// Operations are the operations that fail.
	Operations []Operation
	// Path is a part of the path of the affected files, "" for all.
	Path string
	// Errno is the result. 0 means that the operations hang until the fault is cleared, and
	// then succeed.
	Errno syscall.Errno
	// Times is how many operations fail, 0 for all.
	Times int
}

// FS is one mounted file system.
type FS struct {
	server *fuse.Server
	point  string

	mu sync.Mutex
	// fault is nil for none. cleared is closed when the fault ends.
	fault   *Fault
	cleared chan struct{}
	hits    int
}

// Mount mounts a mirror of the folder backing on the folder point. It needs root and /dev/fuse.
func Mount(backing, point string) (*FS, error) {
	f := &FS{}
	var st syscall.Stat_t
	if err := syscall.Stat(backing, &st); err != nil {
		return nil, fmt.Errorf("looking at %s: %w", backing, err)
	}
	root := &fs.LoopbackRoot{Path: backing, Dev: uint64(st.Dev)}
	root.NewNode = func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &node{LoopbackNode: fs.LoopbackNode{RootData: data}, fs: f}
	}
	top := &node{LoopbackNode: fs.LoopbackNode{RootData: root}, fs: f}
	root.RootNode = top
	server, err := fs.Mount(point, top, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, FsName: "faultfs", Name: "faultfs", MaxWrite: 1 << 17,
	}})
	if err != nil {
		return nil, fmt.Errorf("mounting a FUSE file system at %s: %w", point, err)
	}
	f.server, f.point = server, point
	return f, nil
}

// Possible reports whether this process can mount the file system.
func Possible() bool {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil && os.Geteuid() == 0
}

// Inject replaces the current fault.
func (f *FS) Inject(fault Fault) {
	f.Clear()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.cleared, f.hits = &fault, make(chan struct{}), 0
}

// Clear ends the fault; hanging operations continue.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		close(f.cleared)
		f.fault = nil
	}
}

// Hits returns how many operations the last fault has affected.
func (f *FS) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// Close unmounts the file system, which must not be in use.
func (f *FS) Close() error {
	f.Clear()
	if err := f.server.Unmount(); err != nil {
		// A killed process uses the file system for a moment more.
		if lazy := syscall.Unmount(f.point, syscall.MNT_DETACH); lazy != nil {
			return fmt.Errorf("unmounting: %w", err)
		}
	}
	return nil
}

// strike applies the fault to one operation.
func (f *FS) strike(ctx context.Context, o Operation, path string) syscall.Errno {
	f.mu.Lock()
	fault, cleared := f.fault, f.cleared
	if fault == nil || !strings.Contains(path, fault.Path) || !fault.befalls(o) ||
		fault.Times > 0 && f.hits >= fault.Times {
		f.mu.Unlock()
		return 0
	}
	f.hits++
	f.mu.Unlock()
	if fault.Errno != 0 {
		return fault.Errno
	}
	select {
	case <-cleared:
		return 0
	case <-ctx.Done(): // the process was killed
		return syscall.EINTR
	}
}

func (f *Fault) befalls(o Operation) bool {
	return slices.Contains(f.Operations, o)
}

// node is a file or a folder.
type node struct {
	fs.LoopbackNode
	fs *FS
}

// handle is an open file without FUSE passthrough, with which the kernel would bypass this
// process.
type handle struct {
	fs.FileReader
	fs.FileWriter
	fs.FileReleaser
	fs.FileFlusher
	fs.FileFsyncer
	fs.FileGetattrer
	fs.FileSetattrer
	fs.FileLseeker
	fs.FileAllocater
}

func handleOf(h fs.FileHandle) fs.FileHandle {
	return &handle{
		h.(fs.FileReader), h.(fs.FileWriter), h.(fs.FileReleaser), h.(fs.FileFlusher), h.(fs.FileFsyncer),
		h.(fs.FileGetattrer), h.(fs.FileSetattrer), h.(fs.FileLseeker), h.(fs.FileAllocater),
	}
}

// Open implements fs.NodeOpener.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, fuseFlags, e := n.LoopbackNode.Open(ctx, flags)
	if e != 0 {
		return nil, 0, e
	}
	return handleOf(h), fuseFlags, 0
}

// Create implements fs.NodeCreater.
func (n *node) Create(
	ctx context.Context,
	name string,
	flags, mode uint32,
	out *fuse.EntryOut,
) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, h, fuseFlags, e := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if e != 0 {
		return nil, nil, 0, e
	}
	return inode, handleOf(h), fuseFlags, 0
}

var (
	_ fs.NodeOpener  = (*node)(nil)
	_ fs.NodeCreater = (*node)(nil)
	_ fs.NodeWriter  = (*node)(nil)
	_ fs.NodeReader  = (*node)(nil)
	_ fs.NodeFsyncer = (*node)(nil)
)

// Write implements fs.NodeWriter.
func (n *node) Write(ctx context.Context, h fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	if e := n.fs.strike(ctx, Write, n.Path(nil)); e != 0 {
		return 0, e
	}
	return h.(fs.FileWriter).Write(ctx, data, offset)
}

// Read implements fs.NodeReader.
func (n *node) Read(ctx context.Context, h fs.FileHandle, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	if e := n.fs.strike(ctx, Read, n.Path(nil)); e != 0 {
		return nil, e
	}
	return h.(fs.FileReader).Read(ctx, dest, offset)
}

// Fsync implements fs.NodeFsyncer.
func (n *node) Fsync(ctx context.Context, h fs.FileHandle, flags uint32) syscall.Errno {
	if e := n.fs.strike(ctx, Sync, n.Path(nil)); e != 0 {
		return e
	}
	if h == nil { // a folder
		return 0
	}
	return h.(fs.FileFsyncer).Fsync(ctx, flags)
}
