package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac.dev/bivouac/scheduler"
	copystore "bivouac.dev/bivouac/scheduler/copies"
)

// WorkspacesConfig says where workspaces are copied to, nowhere if Backup is "", and what copies and
// moves them; see scheduler.Config and nomad.Config.
type WorkspacesConfig struct {
	// Backup is the URL of the store of copies.
	Backup   string        `hcl:"backup"`
	Interval time.Duration `hcl:"interval"`
	Retain   int           `hcl:"retain"`
	// Image and Command are nomad.Config's CarryImage and CarryCommand.
	Image   string `hcl:"image"`
	Command string `hcl:"command"`
}

func (c *WorkspacesConfig) decode(b *hcl.Block) hcl.Diagnostics {
	sched := scheduler.DefaultConfig()
	c.Interval, c.Retain = sched.CopyInterval, sched.CopyRetain
	return decodeBody(b.Body, []attr{
		{name: "backup", set: setString(&c.Backup, isCopyStore)},
		{name: "interval", set: setDuration(&c.Interval, 10*time.Second, 30*24*time.Hour)},
		{name: "retain", set: setInt(&c.Retain, 1, 1000)},
		{name: "image", set: setString(&c.Image, notEmpty)},
		{name: "command", set: setString(&c.Command, notEmpty)},
	}, nil)
}

// isCopyStore checks the URL of a store of copies.
func isCopyStore(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "file" && u.Scheme != "s3" || u.Scheme == "s3" && u.Host == "" ||
		u.Scheme == "file" && (u.Host != "" || u.Path == "" || u.RawQuery != "") {
		return fmt.Errorf("must be file:///DIRECTORY or s3://BUCKET?region=REGION, got %q", s)
	}
	return nil
}

// open opens the store of copies, which makes no call. Without one nothing is copied.
func (c WorkspacesConfig) open(ctx context.Context, s *scheduler.Config, keys copystore.Keys) error {
	if c.Backup == "" {
		return nil
	}
	store, err := copystore.Open(ctx, c.Backup, keys)
	if err != nil {
		return err
	}
	s.Copies, s.CopyInterval, s.CopyRetain = store, c.Interval, c.Retain
	return nil
}
