// Command page assembles the web page of a node out of npm packages: the published build of Agent
// Canvas with the changes that changes.go declares, and the fonts and Monaco that it would else load
// from elsewhere. `make page` calls it.
//
//	page -packages DIR -out DIR -link PATH
//
// DIR of -packages has what `npm ci` made of this folder's lock file. The page is written once for a
// lock file and this program to a folder of its own below -out, which -link leads to.
package main

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// sources are what decides what a page is made of, beside the lock file.
//
//go:embed *.go script.js docs.html docs.js
var sources embed.FS

func main() {
	packages := flag.String("packages", "", "the folder with node_modules and package-lock.json")
	out := flag.String("out", "", "the folder to keep pages in")
	link := flag.String("link", "", "the path that leads to this page")
	flag.Parse()
	if *packages == "" || *out == "" || *link == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: page -packages DIR -out DIR -link PATH")
		os.Exit(2)
	}
	if err := run(*packages, *out, *link); err != nil {
		fmt.Fprintln(os.Stderr, "page: "+err.Error())
		os.Exit(1)
	}
}

func run(packages, out, link string) error {
	key, err := keyOf(packages)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(out, key))
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := makeOnce(packages, dir); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return replaceLink(dir, link)
}

// keyOf is a name for the page that this program makes of the packages.
func keyOf(packages string) (string, error) {
	h := sha256.New()
	lock, err := os.ReadFile(filepath.Join(packages, "package-lock.json"))
	if err != nil {
		return "", err
	}
	h.Write(lock)
	entries, err := sources.ReadDir(".")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		b, err := sources.ReadFile(e.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", e.Name(), len(b))
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// makeOnce makes the page in a folder beside dir first: dir is whole, or not there.
func makeOnce(packages, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	declared, err := changes(filepath.Join(packages, "node_modules"))
	if err != nil {
		return err
	}
	if err := assemble(packages, tmp, declared); err != nil {
		return err
	}
	err = os.Rename(tmp, dir)
	if _, there := os.Stat(dir); there == nil {
		return nil // another one made the same meanwhile
	}
	return err
}

// replaceLink makes link lead to dir.
func replaceLink(dir, link string) error {
	if has, err := os.Readlink(link); err == nil && has == dir {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	next := link + ".new"
	_ = os.Remove(next) // of a run that was ended
	if err := os.Symlink(dir, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}

// once replaces the only occurrence of old.
func once(in []byte, old, with string) ([]byte, error) {
	if n := bytes.Count(in, []byte(old)); n != 1 {
		return nil, fmt.Errorf("%q stands in it %d times, not once", old, n)
	}
	return bytes.Replace(in, []byte(old), []byte(with), 1), nil
}
