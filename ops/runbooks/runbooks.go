// Package runbooks holds the operator's runbooks, which the program ships:
// `bivouac runbook NAME` prints one. Errors, log messages and --help name a
// runbook as that command, because a node's machine has no source tree.
package runbooks

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed *.md alerts/*.md
var files embed.FS

// alertsDir has a page for each alert of ops/alerts, named as the alert.
const alertsDir = "alerts/"

// index is the folder's index page; it is no runbook.
const index = "README.md"

// Runbook is one page.
type Runbook struct {
	// Name is the argument of `bivouac runbook`.
	Name string `json:"name"`
	// Title is the page's heading, the situation in one line.
	Title string `json:"title"`
	// Text is the whole page in Markdown; List leaves it out.
	Text string `json:"text,omitempty"`
}

// List returns the name and title of every runbook but those of alerts, sorted by name.
func List() ([]Runbook, error) { return list("*.md") }

// Alerts returns the name and title of the runbook of every alert, sorted by name.
func Alerts() ([]Runbook, error) { return list(alertsDir + "*.md") }

func list(pattern string) ([]Runbook, error) {
	names, err := fs.Glob(files, pattern)
	if err != nil {
		return nil, fmt.Errorf("listing the runbooks: %w", err)
	}
	var list []Runbook
	for _, file := range names {
		if file == index {
			continue
		}
		page, err := read(file)
		if err != nil {
			return nil, err
		}
		page.Text = ""
		list = append(list, page)
	}
	return list, nil
}

// Read returns one runbook, by its name or the name of an alert. The error for an unknown name
// lists the known ones.
func Read(name string) (Runbook, error) {
	alerts, err := Alerts()
	if err != nil {
		return Runbook{}, err
	}
	if slices.ContainsFunc(alerts, func(r Runbook) bool { return r.Name == name }) {
		return read(alertsDir + name + ".md")
	}
	list, err := List()
	if err != nil {
		return Runbook{}, err
	}
	if !slices.ContainsFunc(list, func(r Runbook) bool { return r.Name == name }) {
		known := make([]string, len(list))
		for i, r := range list {
			known[i] = r.Name
		}
		return Runbook{}, &UnknownError{Name: name, Known: known}
	}
	return read(name + ".md")
}

func read(file string) (Runbook, error) {
	text, err := files.ReadFile(file)
	if err != nil {
		return Runbook{}, fmt.Errorf("reading the runbook: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	name := strings.TrimSuffix(path.Base(file), ".md")
	return Runbook{
		Name:  name,
		Title: strings.TrimPrefix(strings.TrimPrefix(first, "# "), name+": "),
		Text:  string(text),
	}, nil
}

// UnknownError says that no runbook has the name.
type UnknownError struct {
	Name  string
	Known []string
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("there is no runbook %q; there are %s, and one for each alert", e.Name, strings.Join(e.Known, ", "))
}
