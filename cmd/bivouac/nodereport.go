package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/secrets"
)

// reportRoomTimeout bounds what a report waits for a file system. Peers wait a second for the whole.
const reportRoomTimeout = 300 * time.Millisecond

// selfReport makes what a node says of itself. newApp fills it before the node runs.
type selfReport struct {
	// data is a directory; backup has another, or none.
	data     string
	backup   backup.Config
	services func() []cluster.Service
	view     func() *fsm.View
	dates    *certificates
	differs  func(*fsm.View) []string
}

// report implements cluster.Config.Report.
func (r *selfReport) report() cluster.Report {
	b := readBuildInfo()
	made := cluster.Report{
		Version: b.Version, Disks: r.disks(), Certificates: r.dates.list(time.Now()),
		Services: []cluster.Service{}, Differs: append([]string{}, r.differs(r.view())...),
	}
	if r.backup.Dir != "" {
		made.BackupInterval = r.backup.Interval.Seconds()
	}
	if r.services != nil {
		made.Services = r.services()
	}
	return made
}

// disks asks both file systems at a time.
func (r *selfReport) disks() []cluster.Disk {
	ask := func(name, dir string) cluster.Disk {
		fs, ok := roomOf(dir, reportRoomTimeout)
		if !ok {
			return cluster.Disk{Name: name, Error: "its file system does not answer"}
		}
		if err := writable(dir); name == cluster.DiskBackup && err != nil {
			return cluster.Disk{Name: name, Error: err.Error()}
		}
		return cluster.Disk{Name: name, Free: int64(fs.Bavail) * fs.Bsize, Size: int64(fs.Blocks) * fs.Bsize}
	}
	if r.backup.Dir == "" {
		return []cluster.Disk{ask(cluster.DiskData, r.data)}
	}
	second := make(chan cluster.Disk, 1)
	go func() { second <- ask(cluster.DiskBackup, r.backup.Dir) }()
	return []cluster.Disk{ask(cluster.DiskData, r.data), <-second}
}

// writable says why nothing can be written in a directory. The next write may make one that is
// missing, but not its parent.
func writable(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "write", Path: dir, Err: unix.ENOTDIR}
	}
	if err == nil {
		if bad := unix.Access(dir, unix.W_OK|unix.X_OK); bad != nil {
			err = &fs.PathError{Op: "write", Path: dir, Err: bad}
		}
	}
	return err
}

// list returns the certificates with the days left at now.
func (c *certificates) list(now time.Time) []cluster.Certificate {
	list := make([]cluster.Certificate, len(c.dated))
	for i, d := range c.dated {
		end := d.expires()
		list[i] = cluster.Certificate{Name: d.name, Expires: end.UTC(), DaysLeft: daysLeft(end, now)}
	}
	return list
}

// servicesOf is Nomad and Vault as the node last found them.
func servicesOf(runner *nomad.Runner, vault *secrets.Vault) []cluster.Service {
	n, v := cluster.Service{Name: cluster.ServiceNomad, Reachable: true}, vault.State()
	if err := runner.Reachable(); err != nil {
		n.Reachable, n.Error = false, callText(err)
	}
	s := cluster.Service{Name: cluster.ServiceVault, Reachable: v.Reachable, Sealed: v.Sealed}
	if !v.SecretIDExpires.IsZero() {
		s.CredentialExpires, s.CredentialWarning = new(v.SecretIDExpires.UTC()), new(v.SecretIDWarning.UTC())
	}
	if v.Err != nil {
		s.Error = callText(v.Err)
	}
	return []cluster.Service{n, s}
}

// callText is the error of a call: of one without an answer, the server and the cause.
func callText(err error) string {
	var failed *url.Error
	if !errors.As(err, &failed) {
		return err.Error()
	}
	u, bad := url.Parse(failed.URL)
	if bad != nil {
		return failed.Err.Error()
	}
	return fmt.Sprintf("%s://%s: %s", u.Scheme, u.Host, failed.Err)
}
