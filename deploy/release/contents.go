package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// file is one file of a release.
type file struct {
	// path is where it is installed, without the leading slash.
	path string
	// source is the file on this machine.
	source string
	mode   fs.FileMode
	// only is the format that has the file: "deb", "rpm", "archive" or, in all of them, "".
	only string
}

// rule says where files of the tree are installed.
type rule struct {
	// glob matches files relative to the tree's root. One that matches none is an error.
	glob string
	// to is the folder, or the file if it has no trailing slash.
	to string
}

// rules are the files of the tree that operators get. What code and tests alone read is not here.
func rules() []rule {
	return []rule{
		{"deploy/systemd/*.service", "usr/lib/systemd/system/"},
		{"deploy/config/node.hcl", "usr/share/bivouac/config/"},
		{"deploy/docker/*", "usr/share/bivouac/docker/"},
		{"deploy/nginx/*", "usr/share/bivouac/nginx/"},
		{"deploy/prometheus/*", "usr/share/bivouac/prometheus/"},
		{"ops/METRICS.md", "usr/share/doc/bivouac/"},
		{"ops/LOGS.md", "usr/share/doc/bivouac/"},
		{"ops/alerts/*.yml", "usr/share/bivouac/alerts/"},
		{"ops/dashboards/*.json", "usr/share/bivouac/dashboards/"},
		{"ops/dashboards/*.y*ml", "usr/share/bivouac/dashboards/"},
		{"deploy/haproxy/*", "usr/share/bivouac/haproxy/"},
		{"deploy/nomad/*.hcl", "usr/share/bivouac/nomad/"},
		{"deploy/nomad/*.sh", "usr/lib/bivouac/"},
		{"deploy/vault/*", "usr/share/bivouac/vault/"},
		{"deploy/README.md", "usr/share/doc/bivouac/"},
		{"deploy/DOMAINS.md", "usr/share/doc/bivouac/"},
		{"CHANGELOG.md", "usr/share/doc/bivouac/"},
		{"httpapi/API.*", "usr/share/doc/bivouac/"},
		{"httpapi/openapi.json", "usr/share/doc/bivouac/"},
		{"ops/runbooks/*.md", "usr/share/doc/bivouac/runbooks/"},
		{"ops/runbooks/alerts/*.md", "usr/share/doc/bivouac/runbooks/alerts/"},
	}
}

// pageFolder is where the web page is installed.
const pageFolder = "usr/share/bivouac/page"

// treeFiles applies the rules to a tree.
func treeFiles(root string) ([]file, error) {
	var files []file
	add := func(r rule) error {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(r.glob)))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("no file matches %s: change the rules in deploy/release/contents.go", r.glob)
		}
		for _, name := range found {
			info, err := os.Stat(name)
			if err != nil {
				return err
			}
			if info.IsDir() {
				continue
			}
			mode, to := fs.FileMode(0o644), r.to
			if info.Mode()&0o100 != 0 {
				mode = 0o755
			}
			if strings.HasSuffix(to, "/") {
				to += filepath.Base(name)
			}
			files = append(files, file{path: to, source: name, mode: mode})
		}
		return nil
	}
	for _, r := range rules() {
		if err := add(r); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// pageFiles are the files of the web page, beside the program as it looks for them.
func pageFiles(dir string) ([]file, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	var files []file
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		files = append(files, file{path: path.Join(pageFolder, filepath.ToSlash(rel)), source: p, mode: 0o644})
		return err
	})
	return files, err
}

// generatedFiles names the files that are made for a release, by their names in the folder dir.
func generatedFiles(dir string) []file {
	at := func(name string) string { return filepath.Join(dir, name) }
	return []file{
		{path: "usr/share/doc/bivouac/copyright", source: at("copyright"), mode: 0o644},
		{path: "usr/share/doc/bivouac/bivouac.spdx.json", source: at("spdx"), mode: 0o644},
		{path: "usr/share/doc/bivouac/configuration.txt", source: at("configuration"), mode: 0o644},
		{path: "usr/share/bash-completion/completions/bivouac", source: at("bash"), mode: 0o644},
		{path: "usr/share/fish/vendor_completions.d/bivouac.fish", source: at("fish"), mode: 0o644},
		{path: "usr/share/doc/bivouac/changelog.gz", source: at("changelog"), mode: 0o644, only: "deb"},
		{path: "usr/share/lintian/overrides/bivouac", source: at("overrides"), mode: 0o644, only: "deb"},
		// Debian's zsh has a folder of its own for packages.
		{path: "usr/share/zsh/vendor-completions/_bivouac", source: at("zsh"), mode: 0o644, only: "deb"},
		{path: "usr/share/zsh/site-functions/_bivouac", source: at("zsh"), mode: 0o644, only: "rpm"},
		{path: "usr/share/zsh/site-functions/_bivouac", source: at("zsh"), mode: 0o644, only: "archive"},
	}
}

// of returns the files that one format has.
func of(files []file, format string) []file {
	var list []file
	for _, f := range files {
		if f.only == "" || f.only == format {
			list = append(list, f)
		}
	}
	return list
}

// within returns the files whose path is in one of the folders.
func within(files []file, folders ...string) []file {
	var list []file
	for _, f := range files {
		for _, folder := range folders {
			if path.Dir(f.path) == folder || strings.HasPrefix(f.path, folder+"/") {
				list = append(list, f)
				break
			}
		}
	}
	return list
}
