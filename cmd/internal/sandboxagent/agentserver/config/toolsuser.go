package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// toolsUser returns the user that commands and agents run as and files are used as: the one of this
// name where this process is root and may change users; nil is its own. Two users keep the server's
// keys from what the model does.
func toolsUser(name string) (*user.User, *syscall.Credential, error) {
	if name == "" || os.Geteuid() != 0 {
		return nil, nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", envToolsUser, err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil || uid == 0 {
		return nil, nil, fmt.Errorf("%s: %s is no user beside root", envToolsUser, name)
	}
	for _, c := range []uint{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_CHOWN} {
		if !capable(c) {
			return nil, nil, fmt.Errorf("%s: root without the capabilities SETUID, SETGID, "+
				"KILL and CHOWN can't run commands as %s: "+
				"give the spec cap_add = [\"SETUID\", \"SETGID\", \"KILL\", \"CHOWN\"], or user = %q", envToolsUser, name, name)
		}
	}
	return u, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// capable reports whether a capability is effective.
func capable(c uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[c/32].Effective&(1<<(c%32)) != 0
}

// UseToolsUser makes commands, agents and files those of ToolsUser, if this process is root. Call it
// once, before New or NewDeferred.
func (c *Config) UseToolsUser() error {
	u, as, err := toolsUser(c.ToolsUser)
	if as == nil || err != nil {
		return err
	}
	if c.Environ == nil {
		c.Environ = os.Environ()
	}
	own := []string{"HOME=" + u.HomeDir, "USER=" + u.Username, "LOGNAME=" + u.Username}
	inherited := slices.DeleteFunc(slices.Clone(c.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "HOME" || name == "USER" || name == "LOGNAME"
	})
	c.Environ, c.Tools = append(inherited, own...), as
	return nil
}

// Protect keeps the server's own directories from the tools' user, who may have made them when the
// server had no other.
func (c Config) Protect() error {
	if c.Tools == nil {
		return nil
	}
	for _, dir := range []string{c.ConversationsPath, c.BashEventsDir} {
		if dir == "" {
			continue
		}
		if err := protect(dir); err != nil {
			return fmt.Errorf("making %s the server's own: %w", dir, err)
		}
	}
	return nil
}

// protect makes a directory with all in it the server's, in a directory in which every user may
// make files and none may move another's.
func protect(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	workspace := filepath.Dir(dir)
	if err := os.MkdirAll(workspace, 0o755); err != nil {
		return err
	}
	if err := os.Chown(workspace, 0, 0); err != nil {
		return err
	}
	if err := os.Chmod(workspace, 0o777|os.ModeSticky); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is no directory", dir)
	}
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return own(dir)
}

// own takes a directory, and in it what is not below an agent's own directory.
func own(dir string) error {
	if err := os.Lchown(dir, 0, 0); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && e.Name() == "acp":
			err = os.Lchown(path, 0, 0)
		case e.IsDir():
			err = own(path)
		default:
			err = os.Lchown(path, 0, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
