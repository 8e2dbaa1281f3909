package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/hcl/v2"

	"bivouac.dev/bivouac/httpapi/page"
)

// UIConfig says whether the node serves the web page. The block alone says yes.
type UIConfig struct {
	Enabled bool `hcl:"enabled"`
	// Directory has the page; "" is the one that came with the program.
	Directory string `hcl:"directory"`
}

func (c *UIConfig) decode(b *hcl.Block) hcl.Diagnostics {
	c.Enabled = true
	return decodeBody(b.Body, []attr{
		{name: "enabled", set: setBool(&c.Enabled)},
		{name: "directory", set: setString(&c.Directory, notEmpty)},
	}, nil)
}

// open opens the page, nil if the node serves none.
func (c UIConfig) open() (*page.Page, error) {
	switch {
	case !c.Enabled:
		return nil, nil
	case c.Directory != "":
		return page.Open(c.Directory)
	}
	return ownPage()
}

// ownPage opens the page that came with the program. Where none did, it is one that says so.
func ownPage() (*page.Page, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the web page beside this program: %w", err)
	}
	for _, dir := range pageDirs(program) {
		if _, err := os.Stat(filepath.Join(dir, page.ManifestName)); !errors.Is(err, fs.ErrNotExist) {
			return page.Open(dir)
		}
	}
	return page.Missing(), nil
}

// pageDirs are where the page of a program is: packages have it in share, and `make build` puts it
// beside the program.
func pageDirs(program string) []string {
	bin := filepath.Dir(program)
	return []string{filepath.Join(filepath.Dir(bin), "share", "bivouac", "page"), filepath.Join(bin, "page")}
}

// ui looks at the web page. A node without it serves the API all the same.
func (i *inspection) ui(c UIConfig) {
	const subject = "ui.directory"
	found, err := c.open()
	switch {
	case found == nil && err == nil:
	case err != nil:
		i.add(checkFail, subject, "%s", err)
	case found.IsMissing():
		i.add(checkWarn, subject, "the web page is not beside this program; a release's packages have it")
	default:
		i.add(checkOK, subject, "the web page has %d files", len(found.Manifest().Files))
	}
}
