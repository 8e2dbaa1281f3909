// Package credential lets the agent server use files as the user that its commands run as.
package credential

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Do calls f with the file permissions of a user; nil is the process's own. The kernel keeps them
// for each thread, so f must not start goroutines that use files. A panic in f is an error.
func Do(as *syscall.Credential, f func() error) error {
	if as == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, which does not unlock it: it is never used as another.
		runtime.LockOSThread()
		done <- func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("what ran as user %d failed unexpectedly: %v", as.Uid, p)
				}
			}()
			if err := setFileUser(as); err != nil {
				return fmt.Errorf("the tools' user %d can't be used: %w", as.Uid, err)
			}
			return f()
		}()
	}()
	return <-done
}

// setFileUser sets the calling thread's groups and file user. The library's setgroups would set all
// threads'.
func setFileUser(as *syscall.Credential) error {
	groups := append([]uint32{as.Gid}, as.Groups...)
	if !as.NoSetGroups {
		if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])),
			0); e != 0 {
			return e
		}
	}
	if err := unix.Setfsgid(int(as.Gid)); err != nil {
		return err
	}
	if err := unix.Setfsuid(int(as.Uid)); err != nil {
		return err
	}
	// setfsuid reports no error: the second call returns what the first has set.
	if now, err := unix.SetfsuidRetUid(int(as.Uid)); err != nil || now != int(as.Uid) {
		return fmt.Errorf("the kernel kept user %d", now)
	}
	return nil
}
